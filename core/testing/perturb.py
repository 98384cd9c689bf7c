"""Changes variables for a while, and features of a batch, to compare a step with itself."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from core.module import named_variables
from core.task import Batch, Task
from core.testing.traced import Step, steps


@contextlib.contextmanager
def kept(variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Restores the values of `variables` when its context ends."""
    before = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def nudged(task: Task) -> Iterator[None]:
    """Changes all parameters slightly in its context. A gradient may be zero where a parameter starts at zero."""
    random = np.random.RandomState(0)
    variables = list(named_variables(task, trainable_only=True).values())
    with kept(variables):
        for variable in variables:
            value = variable.numpy()
            if np.issubdtype(value.dtype, np.floating):
                noise = random.standard_normal(value.shape) * (0.05 + 0.1 * np.std(value))
                variable.assign(value + noise.astype(value.dtype))
        yield


def nudged_steps(task: Task, batch: Batch, *, seed: int) -> Iterator[Step]:
    """Yields the traced steps of `task` with slightly changed parameters. A layer of zeros would hide others."""
    made = steps(task, batch, seed=seed)
    with nudged(task):
        yield from made


def changed(x: tf.Tensor, places: Any) -> tf.Tensor:
    """Returns a copy of `x` with other plausible values at `places`, a mask or an index."""
    values = x.numpy().copy()
    at = values[places]
    if values.dtype.kind == "b":
        values[places] = ~at
    elif values.dtype.kind == "f":
        values[places] = at + 1.0 + np.random.RandomState(0).standard_normal(at.shape).astype(at.dtype)
    else:
        low, high = int(values.min()), int(values.max())
        values[places] = (at - low + 1) % max(high - low + 1, 1) + low
    return tf.constant(values)
