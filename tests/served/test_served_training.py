"""Asynchronous training with the real command, compared with training on one device."""

import contextlib

import pytest

from tests.commands import run
from tests.served.lab import RUNTIME, Served, counting, figures, flags, hashes, values

MANY = """
import gin
import tensorflow as tf
from count import Count
from core.module import Module
from core.task import Loss

class Net(Module):
    def __init__(self):
        super().__init__()
        self.ws = [tf.Variable(0.0) for _ in range(60)]

@gin.configurable
class Many(Count):
    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net = Net()

    def loss(self, batch, rng):
        w = tf.stack(self.net.ws)
        noise = rng.uniform([500, 500])
        rows = tf.where(tf.reduce_sum(noise @ noise) > 0.0, tf.ones_like(batch["x"]), 0.0)  # takes a while
        return Loss(-tf.reduce_sum(w) * rows, metrics={"apart": (tf.reduce_max(w) - tf.reduce_min(w)) * rows})
"""


@pytest.mark.long
def test_served_run_at_one_worker_is_the_synchronous_run_to_the_bit(tmp_path):
    """Each resumes from the other's checkpoint."""
    mixed, whole = tmp_path / "mixed", tmp_path / "whole"
    for steps, runtime in ((10, []), (20, [RUNTIME]), (30, [])):
        arguments = flags(f"Trainer.steps = {steps}", workdir=mixed, files=runtime)
        with Served(tmp_path, servers=2) if runtime else contextlib.nullcontext() as served:
            done = served.train(*arguments) if served else run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert run(*flags("Trainer.steps = 30", workdir=whole), cwd=tmp_path).returncode == 0
    assert hashes(mixed) == hashes(whole)
    for name in ("loss", "learning_rate"):
        assert [line[name] for line in figures(mixed)] == [line[name] for line in figures(whole)]
    assert figures(mixed, "eval")[-1:] == figures(whole, "eval")
    assert [line.get("staleness_max") for line in figures(mixed)] == [None, 0.0, None]


NORMALISED = """
import gin
import tensorflow as tf
from count import Count
from core import layers
from core.module import Module
from core.optimizers import chain, ema, sgd
from core.task import Loss, Statistics, Update

class Net(Module):
    def __init__(self, rng):
        super().__init__()
        self.norm, self.out = layers.BatchNorm(3, sync=True), layers.Linear(3, 1, rng=rng)

    def __call__(self, x, statistics=None):
        return self.out(self.norm(x, statistics=statistics))[:, 0]

@gin.configurable
class Normalised(Count):
    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net = Net(rng)

    def phases(self):
        rule = chain(sgd(0.1), ema(0.8))
        return [Update("net", loss=self.loss, trains=self.net, optimizer=rule, mixes_rows=True)]

    def loss(self, batch, rng):
        statistics, x = Statistics(), tf.random.stateless_normal([4, 3], tf.stack([0, tf.cast(rng.step, tf.int32)]))
        per_example = tf.square(self.net(x, statistics) - x[:, 0])
        return Loss(per_example + 0.0 * tf.reduce_sum(tf.reshape(batch["x"], [4, -1]), 1), statistics=statistics)
"""


@pytest.mark.long
def test_averaged_statistics_of_normalisation_are_those_of_one_device(tmp_path):
    """With one worker, since two take separate steps."""
    arguments = counting(tmp_path, "Trainer.steps = 10", "Experiment.task = @Normalised")
    (tmp_path / "normalised.py").write_text(NORMALISED)
    (tmp_path / "count.gin").write_text((tmp_path / "count.gin").read_text() + "\nimport normalised\n")
    with Served(tmp_path, servers=2) as served:
        done = served.train(*arguments)
    assert done.returncode == 0, done.stderr
    alone = [x for x in arguments if x not in (RUNTIME, "--workdir=run")]
    done = run(*alone, "--workdir=alone", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path / "run") == hashes(tmp_path / "alone")
    assert sum("/statistics/" in path for path in hashes(tmp_path / "run")) == 2


@pytest.mark.long
def test_two_workers_take_each_step_once_from_weights_of_one_moment(tmp_path):
    """Each step adds one to all weights, so a worker that reads during another's push sees some that differ.

    A worker that held the lock while computing would stop the other: no gradient would be of older weights.
    """
    (tmp_path / "many.py").write_text(MANY)
    bindings = ["Experiment.task = @Many", "Trainer.steps = 100", "Trainer.chunk_steps = 50"]
    with Served(tmp_path, workers=2) as served:
        done = served.train(*counting(tmp_path, *bindings), "--gin_param=import many")
    assert done.returncode == 0, done.stderr
    lines = figures(tmp_path / "run")
    assert [line["staleness_max"] >= 1.0 for line in lines] == [True]
    assert [line["apart"] for line in lines] == [0.0]
    found = values(tmp_path / "run")
    assert found.pop("optimizer/net/step") == 100
    assert set(found.values()) == {100.0}
