"""Hooks check before the first step that they fit the task; their errors name parameter and value."""

import math

import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from tests.toys import point_source
from tests.trainers.hooks.hooks_lab import Maker
from tests.trainers.trainer_lab import HELD_OUT, make
from trainers.hooks import Hook, LinearProbe, Quality, Reconstructions, SampleGrid, Translations
from trainers.hooks.samples import make_sampler
from trainers.settings import Settings


class Unlabelled:
    samples = 3

    def __call__(self, image, label):
        return {}


class Seen(Hook):
    """Records when it was asked."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def check(self, run):
        self.steps.append((run.step, type(run.experiment.task).__name__))
        raise ConfigurationError("`Seen.x` is 3; give 4.")

    def __call__(self, run):
        self.steps.append("called")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """Returns a classifier's trainer, whose hooks each test replaces."""
    return make(tmp_path_factory.mktemp("trainer"), eval_source=HELD_OUT)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            SampleGrid(),
            "^`Trainer.hooks` holds a `SampleGrid`, which can't be called: `Small` makes no samples: it needs",
        ),
        (Quality(judge=Unlabelled()), "`Small` makes no samples"),
        (Translations(), "`Small` translates no images"),
        (LinearProbe(), r"`LinearProbe` needs features, but `Small` has none.*features\(batch\)"),
        (Reconstructions(), r"`Small` reconstructs no images.*`reconstruct\(batch\)`"),
        (Quality(judge=print), "`Quality.judge` is <built-in function print>, whose `samples` "),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Hook) else None,
)
def test_a_hook_that_does_not_fit_the_task_is_refused_before_the_first_step(trainer, hook, message):
    trainer.hooks[:] = [hook]
    with pytest.raises(ConfigurationError, match=message):
        trainer.train()
    assert trainer.step == 0
    assert trainer.chunk.experimental_get_tracing_count() == 0


def test_custom_hook_is_checked_too(tmp_path):
    hook = Seen()
    with pytest.raises(ConfigurationError, match=r"`Seen\.x` is 3"):
        make(tmp_path, task=Maker, source=point_source(), hooks=[hook]).train()
    assert hook.steps == [(0, "Maker")]


def test_judge_that_wants_labels_is_refused_where_samples_have_none(tmp_path):
    trainer = make(tmp_path, task=Maker, source=point_source(), hooks=[Quality(judge=Unlabelled())])
    with pytest.raises(ConfigurationError, match="needs the `label` of each sample, but `sample` of `Maker` returns"):
        trainer.train()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda n: tf.zeros([n, 4, 4, 1]), r"`Maker.sample` returned <tf.Tensor.*>; it returns"),
        (lambda n: None, "`Maker.sample` returned None; it returns"),
        (lambda n: {"text": tf.zeros([n])}, r"`Maker.sample` returned \['text'\], without `image`; it returns"),
        (lambda n: {"image": tf.zeros([n, 2])}, r"an `image` of float32 and shape \(3, 2\) when asked for 3"),
        (lambda n: {"image": tf.zeros([n + 1, 4, 4, 1])}, r"shape \(4, 4, 4, 1\) when asked for 3"),
        (lambda n: {"image": tf.zeros([n, 4, 4, 7])}, "with 1 to 4 channels"),
        (lambda n: {"image": tf.zeros([n, 4, 4, 1], tf.int32)}, "an `image` of int32"),
    ],
)
def test_samples_that_are_no_images_are_refused(made, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        make_sampler(Maker(rng=None, made=made), 0, 3)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("value", [-1, 0, 2.5, math.inf, math.nan, "3", True, None, "x" * 10_000])
def test_counts_of_hooks_and_of_the_trainer_name_parameter_and_value(value):
    for kind in (SampleGrid, Translations, Reconstructions):
        with pytest.raises(ConfigurationError, match=rf"^`{kind.__name__}\.count` is ") as error:
            kind(count=value)
        assert len(str(error.value)) < 500
    with pytest.raises(ConfigurationError, match=r"^`Trainer\.steps` is ") as error:
        Settings(steps=value, global_batch_size=1)
    assert len(str(error.value)) < 500
    if value is not None:
        with pytest.raises(ConfigurationError, match=r"holds `SampleGrid`, whose `every` is "):
            Settings(steps=1, global_batch_size=1, hooks=[SampleGrid(value)])


def test_hook_without_a_list_around_it_is_refused():
    with pytest.raises(ConfigurationError, match=r"`Trainer.hooks` is <.*SampleGrid.*>; give a list: `\[@SampleGrid"):
        Settings(steps=1, global_batch_size=1, hooks=SampleGrid())
