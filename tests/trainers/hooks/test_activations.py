"""What modules are given and return: numbers that NumPy finds as well, and a run that is the same with them."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import digits
from core.distribution import mesh, mirrored
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.random import Rng
from core.telemetry import Telemetry
from models.classifiers.mlp import MlpClassifier
from tests.trainers.hooks.test_norms import Notes
from tests.trainers.trainer_lab import hashes, make
from trainers.hooks import Activations
from trainers.hooks.activations import overheard


def mlp(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], dropout=0.1, optimizer=sgd(0.1))


def activations(trainer):
    notes = Notes()
    telemetry = Telemetry([notes, files := Files()])
    trainer.train(telemetry)
    return {step: figures for step, split, figures in files.lines if split == "activations"}, notes.notes


class Files:
    def __init__(self):
        self.lines = []

    def write(self, step, split, figures):
        self.lines.append((step, split, dict(figures)))

    def close(self):
        pass


@pytest.mark.parametrize("strategy", [mirrored(replicas=2), mesh(batch=2, model=1)], ids=["replicas", "mesh"])
def test_they_are_those_of_an_evaluation(tmp_path, strategy):
    looking = Activations(20, paths=["net/layers/*"], count=50)
    trainer = make(tmp_path, task=mlp, eval_source=digits("test"), strategy=strategy, hooks=[looking])
    found, _ = activations(trainer)
    assert list(found) == [20, 40]
    values = {path: v.numpy() for path, v in trainer.experiment.variables.items() if path.startswith("task/")}
    x = digits("test").gather(tf.range(50, dtype=tf.int64))["image"].numpy().reshape(50, 64)
    hidden = x @ values["task/net/layers/0/w"] + values["task/net/layers/0/b"]
    active = np.maximum(hidden, 0.0)
    logits = active @ values["task/net/layers/1/w"] + values["task/net/layers/1/b"]
    expected = {}
    each = {"given/net/layers/0": x, "returned/net/layers/0": hidden}
    each |= {"given/net/layers/1": active, "returned/net/layers/1": logits}
    for name, y in each.items():
        dead = np.mean(np.all(y == 0.0, axis=0))
        figures = {"mean": y.mean(), "deviation": y.std(), "zeros": np.mean(y == 0.0), "dead": dead}
        expected |= {f"{name}/{key}": value for key, value in figures.items()}
    assert found[40] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_run_is_the_same_with_them(tmp_path):
    plain = make(tmp_path, name="plain", task=mlp)
    plain.train()
    looked = make(tmp_path, name="looked", task=mlp, hooks=[Activations(10)])
    activations(looked)
    assert hashes(looked) == hashes(plain)


def test_dead_units_are_told_once(tmp_path):
    class Dead(MlpClassifier):
        def __init__(self, *, rng):
            super().__init__(rng=rng, sizes=[64, 8, 10], optimizer=sgd(0.1))
            self.net.layers[0].b.assign([-1e3] * 5 + [0.0] * 3)

    _, notes = activations(make(tmp_path, task=Dead, hooks=[Activations(10)]))
    (warning,) = [note for note in notes if "dead" in note]
    assert "% of the units that `net/dropout` is given are dead" in warning
    _, notes = activations(make(tmp_path, name="well", task=mlp, hooks=[Activations(10)]))
    assert not [note for note in notes if "dead" in note]


def test_a_pattern_that_matches_nothing_is_refused(tmp_path):
    trainer = make(tmp_path, task=mlp, hooks=[Activations(paths=["net/layer/*"])])
    with pytest.raises(ConfigurationError, match=r"`Activations.paths` has the pattern 'net/layer/\*', .* no module"):
        trainer.train()
    for wrong in ({"paths": "net"}, {"count": 0}):
        with pytest.raises(ConfigurationError, match=r"`Activations\."):
            Activations(**wrong)


def test_modules_are_as_they_were_once_they_were_overheard():
    net = mlp(rng=Rng.from_seed(0)).net
    cls, heard = type(net.layers[0]), []
    with pytest.raises(ValueError, match="64"), overheard(net, ["*"], lambda name, x: heard.append(name)):
        net(tf.zeros([2, 63]))
    assert type(net.layers[0]) is cls
    assert heard == []
