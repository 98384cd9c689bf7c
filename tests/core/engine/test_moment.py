"""Step functions get the step and the run's progress, the same wherever they run."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from core.engine.phase_runner import PhaseRunner
from core.errors import ConfigurationError
from core.layers import Dropout, Linear, recompute
from core.module import Module
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from core.testing import Run, assemble, assert_overfits, assert_step_function, assert_updates_only, on_virtual_cpus

STEPS = 6
BATCH = {"x": tf.constant(np.random.RandomState(0).randn(8, 3), tf.float32)}
BUILT = functools.partial(Run, batch=BATCH)


class Annealed(Task):
    """Every kind of phase returns its step and progress; everything that it learns depends on them."""

    def __init__(self, *, rng):
        super().__init__()
        self.g, self.d, self.past = Linear(3, 2, rng=rng.fold("g")), Linear(2, 1, rng=rng.fold("d")), Module()
        self.past.progress = tf.Variable(-1.0, trainable=False, name="progress")

    def phases(self):
        return [
            Compute("recall", self.recall, state=self.past),
            Compute("make", self.make),
            Update("g", loss=self.loss, trains=self.g, optimizer=sgd(0.1), through="make"),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.1)),
        ]

    def recall(self, batch, rng):
        return {"before": tf.fill([batch["x"].shape[0]], self.past.progress)}, {self.past.progress.ref(): rng.progress}

    def make(self, batch, rng):
        return {"made": self.g(batch["x"]) * rng.progress, "step_seen": told(batch, rng)["at"]}

    def loss(self, batch, rng):
        error = tf.reduce_sum(tf.square(batch["made"] - batch["x"][:, :2]), 1)
        return Loss(error, metrics={"before": batch["before"], "seen": batch["step_seen"], **told(batch, rng)})

    def d_loss(self, batch, rng):
        noise = tf.cast(rng.step, tf.float32) * rng.fold("noise").rows.normal(batch["x"].shape[0])
        return Loss(tf.square(self.d(batch["x"][:, :2])[:, 0] - 0.1 * noise), metrics=told(batch, rng.fold("more")))


def told(batch, rng):
    rows = [batch["x"].shape[0]]
    return {"at": tf.fill(rows, tf.cast(rng.step, tf.float32)), "done": tf.fill(rows, rng.progress)}


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.long)])
def test_all_phases_get_the_same_on_any_replicas_and_microbatches(compile):
    run = Run(assemble(Annealed, on_virtual_cpus(2)), BATCH, microbatches=2, steps=STEPS, compile=compile)
    figures, steps = run.train(STEPS).figures, np.arange(STEPS)
    done = np.float32(steps / STEPS)
    for name in ("d/at", "g/at", "g/seen"):
        np.testing.assert_array_equal(figures[name], steps)
    for name in ("d/done", "g/done"):
        np.testing.assert_array_equal(figures[name], done)
    np.testing.assert_array_equal(figures["g/before"], [-1.0, *done[:-1]])


def test_a_run_of_unknown_length_has_no_progress():
    with pytest.raises(ConfigurationError, match=r"phase `recall` reads `rng.progress`, .* `TrainStep\(..., steps="):
        BUILT(assemble(Annealed, on_virtual_cpus(1)), steps=None)


class Plain(Annealed):
    def phases(self):
        return [Update("net", loss=self.plain_loss, trains=[self.g, self.d], optimizer=sgd(0.1))]

    def plain_loss(self, batch, rng):
        return Loss(tf.square(self.d(self.g(batch["x"]))[:, 0] + rng.rows.normal(batch["x"].shape[0])))


class Recomputed(Plain):
    """Passes its rng to a recomputed layer, which may read the progress."""

    asks = False

    def plain_loss(self, batch, rng):
        def block(x, rng):
            return Dropout(0.5)(self.g(x), rng.fold("dropout")) * (1.0 + rng.progress if self.asks else 1.0)

        return Loss(tf.square(self.d(recompute(block)(batch["x"], rng))[:, 0]))


class RecomputedAnnealed(Recomputed):
    asks = True


class Scaled(Plain):
    def plain_loss(self, batch, rng):
        loss = super().plain_loss(batch, rng)
        return Loss(loss.per_example * tf.cast(rng.step, tf.float32))


@pytest.mark.long
def test_progress_that_no_phase_asks_for_costs_nothing(monkeypatch):
    runs = {task: BUILT(assemble(task, on_virtual_cpus(1)), steps=STEPS) for task in (Annealed, Plain, Scaled)}
    assert runs[Annealed].step.asks_progress == ["recall", "make", "g", "d"]
    assert runs[Plain].step.asks_progress == runs[Scaled].step.asks_progress == []
    told = len(runs[Plain]._program.graph.get_operations())
    rng_of = PhaseRunner.rng_of
    monkeypatch.setattr(PhaseRunner, "rng_of", lambda *at: rng_of(*at)._replace(moment=None))
    untold = BUILT(assemble(Plain, on_virtual_cpus(1)))
    assert len(untold._program.graph.get_operations()) == told


def test_recomputed_layer_asks_for_the_progress_where_it_reads_it():
    runs = {task: BUILT(assemble(task, on_virtual_cpus(1)), steps=STEPS) for task in (Recomputed, RecomputedAnnealed)}
    assert runs[Recomputed].step.asks_progress == []
    assert runs[RecomputedAnnealed].step.asks_progress == ["net"]
    runs[RecomputedAnnealed].train(2)


def test_assertions_call_step_functions_at_a_moment_of_their_own():
    class Net(Plain):
        def plain_loss(self, batch, rng):
            weight = rng.progress * tf.cast(rng.step, tf.float32)
            return Loss((1.0 + weight) * tf.square(self.d(self.g(batch["x"]))[:, 0] - batch["x"][:, 0]))

    task = Net(rng=Rng.from_seed(0))
    assert_step_function(task.plain_loss, BATCH)
    assert_updates_only(task, "net", [task.g, task.d], BATCH)
    assert_step_function(Plain(rng=Rng.from_seed(0)).plain_loss, BATCH)
    assert_overfits(_Fitting(rng=Rng.from_seed(0)), BATCH, steps=30, to=0.5)


class _Fitting(Plain):
    def plain_loss(self, batch, rng):
        return Loss((1.0 - rng.progress) * tf.square(self.d(self.g(batch["x"]))[:, 0] - batch["x"][:, 0]))
