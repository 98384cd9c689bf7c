"""What the tests of a step train: a task, its optimizers, a traced step, and rows of unequal weight."""

import functools

import numpy as np
import tensorflow as tf

from core.module import named_variables
from core.testing import Run, assemble

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")
ROWS = 24


def make(task_class, *, microbatches, values, **arguments):
    """A task, its optimizers and a traced step."""
    assembly = assemble(functools.partial(task_class, **arguments), STRATEGY, seed=1)
    return assembly.task, assembly.optimizers, Run(assembly, values, microbatches=microbatches, seed=7)


def ragged(seed=0):
    random = np.random.RandomState(seed)
    weight = random.choice([0.0, 0.5, 1.0, 3.0], ROWS).astype("float32")
    return {
        "x": tf.constant(random.randn(ROWS, 5), tf.float32),
        "y": tf.constant(random.randn(ROWS), tf.float32),
        "weight": tf.constant(weight),
    }


def state_of(task, optimizers):
    found = dict(named_variables(task))
    for optimizer in optimizers.values():
        found |= optimizer.variables
    return {path: v.numpy() for path, v in found.items()}
