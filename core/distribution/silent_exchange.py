"""An exchange without communication, to measure the time of a step without its collectives.

The step's results are meaningless; use it for timing only.
"""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange


class SilentExchange(Exchange):
    """Communicates only in the phases named in `heard`. In other phases, a replica's own part counts as the result."""

    def __init__(
        self, strategy: tf.distribute.Strategy, *, reduce_in: tf.DType | None = None, heard: Collection[str] = ()
    ):
        super().__init__(strategy, reduce_in=reduce_in)
        self.heard = heard
        with strategy.scope():
            self._sink = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def reduce(self, values: Any, *, phase: str, what: str) -> Any:
        if phase in self.heard:
            return super().reduce(values, phase=phase, what=what)
        self.run(self._make, *tf.nest.flatten(values, expand_composites=True))
        return self.first(values)

    def gather(self, value: Any, phase: str) -> tf.Tensor:
        if phase in self.heard:
            return super().gather(value, phase)
        with tf.device(self.device):
            return tf.concat([self.first(value)] * self.replicas, 1)

    def split(self, value: tf.Tensor, phase: str) -> Any:
        if phase in self.heard:
            return super().split(value, phase)
        shape = [value.shape[0], value.shape[1] // self.replicas, *value.shape[2:]]
        return self.run(lambda: tf.zeros(shape, value.dtype))  # made in place, since the values don't matter

    def _reduced(self, values: list[Any], phase: str, what: str) -> list[Any]:
        if phase in self.heard:
            return super()._reduced(values, phase, what)
        self._make(*tf.nest.flatten(values, expand_composites=True))
        return values

    def _make(self, *values: tf.Tensor) -> None:
        """Makes a replica compute `values` that nothing reads. Otherwise TensorFlow would prune their computation."""
        ends = [tf.cast(tf.reshape(x, [-1])[:1], tf.float32) for x in values]
        self._sink.assign(tf.reduce_sum(tf.concat(ends, 0)))
