"""The learning rates of an optimizer's last update, for logging."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.optimizers.optimizer import Optimizer

AHEAD = 16  # rates that depend only on the step are computed for so many reads at once


def last_rates(optimizer: Optimizer) -> Callable[[], dict[str, float]]:
    """Returns a function that returns the rates: `{"": 0.1}`, or `{"[embedding/*]": 0.1}` per pattern of `groups`.

    A rule that doesn't declare its rate isn't included. Rates are computed on the host with a traced function, wherever
    the variables are stored. One call computes the rates for several reads, since a call waits while all cores are
    busy. Constant rates need no call.
    """
    rates = optimizer.transform.rates
    if rates is None:
        return dict
    scalars = {
        slot: {path: v for path, v in values.items() if v.shape.rank == 0} for slot, values in optimizer.slots.items()
    }
    small = tf.nest.flatten(scalars)

    def rates_after(step: tf.Tensor, values: Sequence[tf.Tensor]) -> Mapping[str, Any]:
        return rates({}, tf.nest.pack_sequence_as(scalars, values), optimizer.parameters, step=step)

    with tf.device("CPU:0"):
        some = rates_after(tf.zeros([], tf.int64), [tf.zeros([], v.dtype) for v in small])
    fixed = {name: float(rate) for name, rate in some.items() if not tf.is_tensor(rate)}
    moving = [name for name in some if name not in fixed]
    if not moving:
        return fixed.copy

    @tf.function(autograph=False)
    def rates_at(steps: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
        def one(step: tf.Tensor) -> tf.Tensor:
            found = rates_after(step, values)
            return tf.stack([tf.cast(found[name], tf.float32) for name in moving])

        # One at a time, not as a vector, whose kernels may round differently.
        return tf.map_fn(one, steps, fn_output_signature=tf.float32)

    with tf.device("CPU:0"):
        specs = [tf.TensorSpec([], v.dtype) for v in small]
        traced = rates_at.get_concrete_function(tf.TensorSpec([None], tf.int64), *specs)
    known: dict[int, list[float]] = {}
    before = 0

    def rates_of(steps: npt.NDArray[np.int64]) -> list[list[float]]:
        with tf.device("CPU:0"):
            arguments = tf.constant(steps, tf.int64), *(tf.constant(v.numpy()) for v in small)
        found: list[list[float]] = traced(*arguments).numpy().tolist()  # placed on the host when it was traced
        return found

    def read() -> dict[str, float]:
        nonlocal before
        step = max(int(optimizer.step.numpy()) - 1, 0)
        if small or step not in known:
            steps = np.arange(1 if small else AHEAD) * max(step - before, 1) + step
            try:
                found = rates_of(steps)
            except tf.errors.OpError:  # a schedule may raise beyond its end
                found = rates_of(steps[:1])
            known.clear()
            known.update(zip(steps.tolist(), found, strict=False))
        before = step
        return {**fixed, **dict(zip(moving, known[step], strict=True))}

    return read
