"""Tools for tests of a step: a task, its optimizers, a traced step, and rows of unequal weight."""

import functools

import numpy as np
import tensorflow as tf

from core import layers
from core.module import Module, named_variables
from core.task import Loss, Task, Update
from core.task.statistics import Statistics
from core.testing import Run, assemble, replicas

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")
ROWS = 24


class Critic(Module):
    """Has untrained state of both kinds: batch norm and spectral norm."""

    def __init__(self, *, rng):
        super().__init__()
        self.norm = layers.BatchNorm(5, decay=0.9)
        self.linear = layers.SpectralNorm(layers.Linear(5, 3, rng=rng.fold("linear")), rng=rng.fold("vector"))

    def __call__(self, x, statistics=None):
        return self.linear(self.norm(x, statistics=statistics))


class Adversaries(Task):
    """Trains the critic in `d`; `g` only reads it, though it runs its layers in training mode."""

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


def make(task_class, *, microbatches, values, **arguments):
    """Returns a task, its optimizers and a traced step."""
    assembly = assemble(functools.partial(task_class, **arguments), STRATEGY, seed=1)
    return assembly.task, assembly.optimizers, Run(assembly, values, microbatches=microbatches, seed=7)


def take(step, index, values):
    """Takes a step that is traced already, on other values."""
    step._values, _ = replicas._spread(values, step.strategy, step.microbatches)
    return step(index)


def ragged(seed=0):
    random = np.random.RandomState(seed)
    weight = random.choice([0.0, 0.5, 1.0, 3.0], ROWS).astype("float32")
    return {
        "x": tf.constant(random.randn(ROWS, 5), tf.float32),
        "y": tf.constant(random.randn(ROWS), tf.float32),
        "weight": tf.constant(weight),
    }


def state_of(task, optimizers):
    """Returns all variables by path."""
    found = dict(named_variables(task))
    for optimizer in optimizers.values():
        found |= optimizer.variables
    return {path: v.numpy() for path, v in found.items()}


def bits(state):
    return {path: x.tobytes() for path, x in state.items()}
