"""The learning rates of an optimizer's last update, for those who look at a run."""

from collections.abc import Callable

import tensorflow as tf

from core.optimizers.optimizer import Optimizer


def last_rates(optimizer: Optimizer) -> Callable[[], dict[str, float]]:
    """Returns a function that reads them: that of a rule by "", those of `groups` by their pattern, as "[embedding/*]".

    A rule that doesn't say its rate has none here. They are computed on the host, wherever the variables lie, by one
    call of a traced function; rates that never change by none.
    """
    rates = optimizer.transform.rates
    if rates is None:
        return dict
    scalars = {
        slot: {path: v for path, v in values.items() if v.shape.rank == 0} for slot, values in optimizer.slots.items()
    }
    small = tf.nest.flatten(scalars)
    fixed: dict[str, float] = {}
    moving: list[str] = []

    @tf.function(autograph=False)
    def rates_at(step: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
        found = rates({}, tf.nest.pack_sequence_as(scalars, values), optimizer.parameters, step=step)
        fixed.update({name: float(rate) for name, rate in found.items() if not tf.is_tensor(rate)})
        moving[:] = [name for name in found if name not in fixed]
        return tf.stack([tf.cast(found[name], tf.float32) for name in moving] or [0.0])

    with tf.device("CPU:0"):
        specs = [tf.TensorSpec([], v.dtype) for v in small]
        traced = rates_at.get_concrete_function(tf.TensorSpec([], tf.int64), *specs)

    def read() -> dict[str, float]:
        if not moving:
            return dict(fixed)
        step = max(int(optimizer.step.numpy()) - 1, 0)
        with tf.device("CPU:0"):
            values = tf.constant(step, tf.int64), *(tf.constant(v.numpy()) for v in small)
        found = traced(*values)  # whose operations were placed when it was traced
        return {**fixed, **dict(zip(moving, found.numpy().tolist(), strict=True))}

    return read
