"""A linear probe of features: its results, and how it differs from other metrics."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from core.data import ArraySource, Stream, digits
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.random import Rng
from models.classifiers.mlp import MlpClassifier
from tests.commands import CONFIGS, passed
from tests.trainers.trainer_lab import make, train
from trainers.hooks import LinearProbe, probe
from trainers.hooks.probe import probe_accuracy


class Featured(MlpClassifier):
    """Uses its few outputs as features."""

    def __init__(self, *, rng):
        super().__init__(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))

    def features(self, batch):
        return self.net(batch["image"])


def test_probe_is_linear():
    random = np.random.RandomState(0)
    labels = random.randint(0, 3, 60)
    apart = 5.0 * np.eye(3)[labels] + random.randn(60, 3)
    assert probe_accuracy(apart[:40], labels[:40], apart[40:], labels[40:]) == 1.0
    assert probe_accuracy(1e3 * apart[:40] + 7.0, labels[:40], 1e3 * apart[40:] + 7.0, labels[40:]) == 1.0
    uneven = apart * [0.1, 0.1, 10.0]  # the first two alone tell class 0 from class 1
    assert probe_accuracy(uneven[:40], labels[:40], uneven[40:], labels[40:]) == 1.0
    signs = random.choice([-1.0, 1.0], [60, 2])  # no line separates these
    exclusive = (signs[:, 0] * signs[:, 1] > 0).astype(int)
    assert probe_accuracy(signs, exclusive, signs, exclusive) < 0.8


@pytest.mark.parametrize("rows", [1, 2, 4, 9])
def test_features_of_all_examples_are_read_in_their_order(rows, monkeypatch):
    monkeypatch.setattr(probe, "ROWS", rows)
    x = np.arange(5, dtype="float32")
    found = probe._gathered(ArraySource({"x": x}, name="five"), lambda batch: 2.0 * batch["x"])
    np.testing.assert_array_equal(found, 2.0 * x)


def endless(seed, epoch):
    while True:
        yield {"image": np.zeros([8, 8, 1], "float32"), "label": np.int32(0)}


@pytest.mark.parametrize(
    ("train_source", "eval_source", "says"),
    [
        (digits("train"), None, "needs held-out examples: bind `Experiment.eval_source`"),
        (Stream(endless), digits("test"), ".* but `endless` is a stream: remove the hook, or train on a source"),
    ],
)
def test_sources_that_cannot_be_probed_are_refused(train_source, eval_source, says):
    task = Featured(rng=Rng.from_seed(0))
    experiment = SimpleNamespace(task=task, train_source=train_source, eval_source=eval_source)
    with pytest.raises(ConfigurationError, match=f"^`LinearProbe` {says}"):
        LinearProbe().check(SimpleNamespace(experiment=experiment))


def test_probe_tells_features_from_pixels_and_from_the_untrained(tmp_path):
    settings = {"source": digits("train"), "eval_source": digits("test"), "hooks": [LinearProbe()], "steps": 10}
    trainer = make(tmp_path, task=Featured, **settings)
    train(trainer)
    found = {name.removeprefix("probe/"): x for name, x in trainer.evaluation.items() if name.startswith("probe/")}
    assert found["few_pixels"] == pytest.approx(0.9, abs=0.03)
    assert 0.2 < found["few_untrained"] < found["few"]
    assert found["few_untrained"] < found["few_pixels"]
    assert found["few_gain"] == pytest.approx(found["few"] - found["few_pixels"])
    assert found["accuracy"] > found["few"]


@pytest.mark.long
def test_features_beat_pixels_after_a_short_training(tmp_path):
    flags = [f"--gin_param={text}" for text in ("steps = 200", "LinearProbe.every = 200")]
    passed(f"--gin_file={CONFIGS / 'digits_simclr.gin'}", *flags, "--workdir=run", cwd=tmp_path)
    found = json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]
    assert found["probe/accuracy"] >= 0.95
    assert found["probe/few_gain"] >= 0.03
