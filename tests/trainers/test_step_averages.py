"""Untrained state in a step: averages and derived vectors move with the update that owns them, or not at all."""

import numpy as np
import pytest
import tensorflow as tf
from step_lab import ROWS, make, ragged, state_of

from core import layers
from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update
from core.task.statistics import Statistics


class Critic(Module):
    """Batch norm and spectral norm: untrained state of both kinds."""

    def __init__(self, *, rng):
        super().__init__()
        self.norm = layers.BatchNorm(5, decay=0.9)
        self.linear = layers.SpectralNorm(layers.Linear(5, 3, rng=rng.fold("linear")), rng=rng.fold("vector"))

    def __call__(self, x, statistics=None):
        return self.linear(self.norm(x, statistics=statistics))


class Adversaries(Task):
    """`d` trains the critic; `g` only reads it, though it runs its layers in training mode."""

    def __init__(self, *, rng, optimizer):
        super().__init__()
        self.critic, self.g = Critic(rng=rng), layers.Linear(5, 5, rng=rng.fold("g"))
        self.optimizer = optimizer

    def phases(self):
        return [
            Update("d", loss=self.d_loss, trains=self.critic, optimizer=self.optimizer, every=2),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=self.optimizer),
        ]

    def d_loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.reduce_sum(self.critic(batch["x"], statistics), 1), batch["weight"], statistics=statistics)

    def g_loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.reduce_sum(self.critic(self.g(batch["x"]), statistics), 1), statistics=statistics)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_only_the_phase_that_trains_a_module_moves_its_averages(microbatches):
    values = ragged()
    task, _, step = make(Adversaries, microbatches=microbatches, values=values, optimizer=sgd(0.01))
    norm, vector = task.critic.norm, task.critic.linear.vector
    before = vector.numpy()
    step(1)  # only `g` is due
    assert float(norm.moving_weight) == 0.0
    assert vector.numpy().tobytes() == before.tobytes()
    step(2)
    x = values["x"].numpy()
    np.testing.assert_allclose(norm.moving_mean, x.mean(0), atol=1e-6)
    if microbatches == 1:
        np.testing.assert_allclose(norm.moving_variance, x.var(0), rtol=1e-5)
    # The vector is refreshed from the kernel as the update left it.
    kernel = task.critic.linear.layer.w.numpy()
    expected = kernel.T @ (kernel @ before)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-4)


def test_a_skipped_update_moves_no_averages():
    values = ragged() | {"weight": tf.zeros([ROWS])}
    task, optimizers, step = make(Adversaries, microbatches=2, values=values, optimizer=sgd(0.01))
    before = {k: x.tobytes() for k, x in state_of(task.critic, {"d": optimizers["d"]}).items()}
    step(2)
    assert {k: x.tobytes() for k, x in state_of(task.critic, {"d": optimizers["d"]}).items()} == before
