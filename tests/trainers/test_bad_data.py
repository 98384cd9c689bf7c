"""An example that spoils a step or an evaluation is named; other failures blame no example."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.distribution import mirrored
from core.errors import ConfigurationError, DataError, NotFiniteError
from core.optimizers import sgd
from core.task import Compute, Loss, Task, Update
from tests.trainers.trainer_lab import idle, make, train
from trainers.errors.tensorflow import explained
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment


class Line(Task):
    """Learns to make 0 of `x`; may read `y` in a separate phase."""

    def __init__(self, *, rng, scale=1.0, select=False, product=False, through=False):
        super().__init__()
        self.w = tf.Variable([1.0, 1.0], name="w")
        self.scale, self.select, self.product, self.through = scale, select, product, through

    def phases(self):
        update = Update("fit", loss=self.loss, trains=self, optimizer=sgd(0.01))
        return [Compute("double", lambda batch, rng: {"z": 2.0 * batch["y"]}), update] if self.through else [update]

    def loss(self, batch, rng):
        x = batch["x"]
        if self.select:
            x = tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))
        per_example = self.scale * tf.reduce_sum(tf.square(x * self.w), axis=1)
        if self.through:
            per_example += batch["z"]
        if self.product:  # which is left out where it isn't finite, but its gradient is then 0 times NaN
            y = batch["y"]
            per_example += tf.where(tf.math.is_finite(y), y * self.w[0], tf.zeros_like(y))
        return Loss(per_example)

    def evaluate(self, batch):
        return self.loss(batch, None)


def points(size=24, **bad):
    """Returns a source of finite examples, except for `feature=(place, value)`."""
    arrays = {
        "x": np.ones([size, 2], np.float32),
        "y": np.ones([size], np.float32),
        "label": np.arange(size, dtype=np.int32),
    }
    for feature, (place, value) in bad.items():
        arrays[feature][place] = value
    return ArraySource(arrays, name="points", place="/data/points")


ONE_STEP = {"global_batch_size": 24, "steps": 1, "chunk_steps": 1, "log_every": 1}


def task(**options):
    return lambda *, rng: Line(rng=rng, **options)


@pytest.mark.long
def test_the_example_of_a_bad_step_is_named(tmp_path):
    source = points(x=((17, 1), -np.inf))
    # Six steps to an epoch, so that the one with example 17 is in it.
    settings = {"global_batch_size": 4, "microbatches": 2, "steps": 6, "chunk_steps": 6, "log_every": 6}
    trainer = make(tmp_path, task=task(), source=source, strategy=mirrored(replicas=2), **settings)
    with pytest.raises(DataError) as error:
        train(trainer)
    text = str(error.value)
    assert text.startswith(f"step {trainer.step} is not finite, and nothing of it was saved, because its data isn't: ")
    assert "example 17 of source `points` (/data/points) has -inf in `x` at [1]. Repair" in text
    assert 17 in trainer.input.examples_of(trainer.step)
    assert error.value.exit_code == 4


@pytest.mark.parametrize("reads", ["through", "product"])
def test_values_that_another_phase_or_the_gradient_alone_reads_are_blamed_and_counted(reads, tmp_path):
    trainer = make(tmp_path, task=task(**{reads: True}), source=points(y=(slice(3, 8), np.nan)), **ONE_STEP)
    says = r"source `points` .* has nan in `y`; 4 more of these 24 examples have non-finite values in it"
    with pytest.raises(DataError, match=says):
        train(trainer)


def test_values_that_are_not_read_or_are_selected_around_are_not_blamed(tmp_path):
    source = points(x=(slice(None), np.nan), y=(slice(None), np.nan))  # `x` is selected around, `y` isn't read
    trainer = make(tmp_path, task=task(select=True, scale=1e39), source=source, **ONE_STEP)
    with pytest.raises(NotFiniteError, match="step 0 is not finite: in phase `fit`, `loss` is "):
        train(trainer)


class Root(Line):
    """Has a loss that is finite where its gradient isn't: at a weight of 0."""

    def loss(self, batch, rng):
        w = tf.sqrt(self.w[0] - 1.0)
        return Loss(tf.where(tf.math.is_finite(batch["y"]), w + tf.zeros_like(batch["y"]), 0.0))


def test_gradient_lost_to_the_weights_is_not_blamed_on_values_left_out(tmp_path):
    trainer = make(tmp_path, task=lambda *, rng: Root(rng=rng), source=points(y=(5, np.nan)), **ONE_STEP)
    with pytest.raises(NotFiniteError, match="the loss of phase `fit` was, but not the gradient of `w`"):
        train(trainer)


def test_step_that_fails_otherwise_when_repeated_is_still_not_finite(tmp_path):
    class Traced(Line):
        def loss(self, batch, rng):
            if tf.executing_eagerly():
                raise KeyError("eager")
            return Loss(super().loss(batch, rng).per_example * np.inf)

    trainer = make(tmp_path, task=lambda *, rng: Traced(rng=rng), source=points(), **ONE_STEP)
    with pytest.raises(NotFiniteError, match=r"step 0 is not finite.*failed: KeyError: 'eager'"):
        train(trainer)


def test_the_example_of_a_bad_evaluation_is_named():
    experiment = Experiment(task=task(), train_source=points(), strategy=mirrored(replicas=2))
    held_out = points(size=23, x=((20, 1), np.nan), y=(slice(None), np.nan))
    with pytest.raises(DataError) as error:
        Evaluator(experiment, held_out, global_batch_size=8).evaluate()
    assert str(error.value).startswith(
        "evaluation is not finite (`loss` is nan), because its data isn't: example 20 of source `points` "
        "(/data/points) has nan in `x` at [1]. Repair"
    )


def test_evaluation_that_overflows_on_good_data_returns_infinity():
    experiment = Experiment(task=task(scale=1e39), train_source=points())
    assert np.isinf(Evaluator(experiment, points(y=(3, np.nan)), global_batch_size=8).evaluate()["loss"])


def test_function_of_a_newer_jax_names_its_operation():
    said = "Cannot deserialize computation: UNKNOWN: mine.py:8: error:\nunregistered operation 'vhlo.new' found"
    expected = pytest.raises(ConfigurationError, match=r"doesn't know 'vhlo.new', which .*`pip install 'jax<0.10'`")
    with expected, explained(points()):
        raise tf.errors.InvalidArgumentError(None, None, said)


def test_label_that_a_server_refuses_is_named(tmp_path, monkeypatch):
    """With parameter servers, the run waits for it after the chunk: see `ServedBackend.settle`."""
    source = ArraySource({"x": np.ones([64, 2], "float32")}, name="answers")
    trainer = idle(make(tmp_path, task=Line, source=source))

    def settle(program):
        said = "Received a label value of 12 which is outside the valid range of [0, 10)."
        raise tf.errors.InvalidArgumentError(None, None, said)

    monkeypatch.setattr(trainer.train_step.backend, "settle", settle)
    with pytest.raises(DataError, match=r"a label of source `answers` is 12, but the network has 10 outputs"):
        train(trainer)
