"""The learning rates of an optimizer's last update, for those who look at a run."""

from collections.abc import Callable

import tensorflow as tf

from core.optimizers.optimizer import Optimizer
from core.optimizers.transform import State


def last_rates(optimizer: Optimizer) -> Callable[[], dict[str, float]]:
    """Returns a function that reads them: that of a rule by "", those of `groups` by their pattern, as "[embedding/*]".

    A rule that doesn't say its rate has none here. They are computed on the host, wherever the variables lie.
    """
    rates = optimizer.transform.rates
    if rates is None:
        return dict
    scalars = {
        slot: {path: v for path, v in values.items() if v.shape.rank == 0} for slot, values in optimizer.slots.items()
    }

    @tf.function(autograph=False)
    def rates_at(state: State, step: tf.Tensor) -> dict[str, tf.Tensor]:
        found = rates({}, state, optimizer.parameters, step=step)
        # As wide as a Python number, which is to come out as it went in.
        return {
            name: tf.cast(rate, tf.float64) if tf.is_tensor(rate) else tf.constant(rate, tf.float64)
            for name, rate in found.items()
        }

    def read() -> dict[str, float]:
        with tf.device("CPU:0"):
            state = tf.nest.map_structure(lambda v: tf.constant(v.numpy()), scalars)
            step = tf.constant(max(int(optimizer.step.numpy()) - 1, 0), tf.int64)
            return {name: float(rate) for name, rate in rates_at(state, step).items()}

    return read
