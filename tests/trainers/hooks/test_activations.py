"""Inputs and outputs of modules: statistics that match NumPy's, and an unchanged run."""

import numpy as np
import pytest
import tensorflow as tf

from core.distribution import mirrored
from core.errors import ConfigurationError
from core.parallel.mesh import mesh
from core.random import Rng
from core.task.module_calls import observed_calls
from tests.toys import point_source, points
from tests.trainers.hooks.hooks_lab import watched
from tests.trainers.trainer_lab import Deep, make
from trainers.hooks import Activations


class HalfDead(Deep):
    """Three of the four hidden units are always zero."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net.layers[0].b.assign([-1e3] * 3 + [0.0])


@pytest.mark.parametrize(
    "strategy",
    [mirrored(replicas=2), pytest.param(mesh(batch=2, model=1), marks=pytest.mark.long)],
    ids=["replicas", "mesh"],
)
def test_activations_are_those_of_an_evaluation(tmp_path, strategy):
    looking = Activations(2, paths=["net/layers/*", "net/dropout"], count=50)
    settings = {"eval_source": point_source(60, seed=1), "log_every": None, "chunk_steps": 2, "steps": 4}
    file, screen, kept = watched(tmp_path, looking, task=HalfDead, strategy=strategy, **settings)
    found, values = file.of("activations"), kept[4]
    assert list(found) == [2, 4]
    x = points(60, seed=1)["x"][:50]
    (w0, b0), (w1, b1) = ([values[f"task/net/layers/{i}/{name}"] for name in "wb"] for i in (0, 1))
    hidden = x @ w0 + b0
    active = np.maximum(hidden, 0.0)
    each = {"given/net/layers/0": x, "returned/net/layers/0": hidden, "given/net/dropout": active}
    each |= {"returned/net/dropout": active, "given/net/layers/1": active, "returned/net/layers/1": active @ w1 + b1}
    expected = {}
    for name, y in each.items():
        dead = np.mean(np.all(y == 0.0, axis=0))
        figures = {"mean": y.mean(), "deviation": y.std(), "zeros": np.mean(y == 0.0), "dead": dead}
        expected |= {f"{name}/{key}": value for key, value in figures.items()}
    assert found[4] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert found[4]["given/net/dropout/dead"] == 0.75
    (warning,) = [note for note in screen.notes if "dead" in note]
    assert "75% of the units that `net/dropout` is given are dead" in warning


def test_activations_of_a_pattern_that_matches_nothing_are_refused(tmp_path):
    trainer = make(tmp_path, task=Deep, source=point_source(), hooks=[Activations(paths=["net/layer/*"])])
    with pytest.raises(ConfigurationError, match=r"`Activations.paths` has the pattern 'net/layer/\*', .* no module"):
        trainer.train()
    for wrong in ({"paths": "net"}, {"count": 0}):
        with pytest.raises(ConfigurationError, match=r"`Activations\."):
            Activations(**wrong)


def test_modules_are_as_they_were_once_they_were_overheard():
    net = Deep(rng=Rng.from_seed(0)).net
    cls, heard = type(net.layers[0]), []
    with pytest.raises(ValueError, match="3"), observed_calls(net, ["*"], lambda name, x: heard.append(name)):
        net(tf.zeros([2, 5]))
    assert type(net.layers[0]) is cls
    assert heard == []
