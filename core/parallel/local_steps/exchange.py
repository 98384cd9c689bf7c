"""The exchange of local steps: sends nothing within a round, and sums over the replicas at the round's end."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange

ROUND = "round"  # in the ledger, stands for the phases of all its steps


class LocalExchange(Exchange):
    """The exchange of a replica that runs whole steps alone, in replica context."""

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` once, because the caller is already in replica context."""
        return fn(*args)

    def first(self, values: Any) -> Any:
        """Returns this replica's values."""
        return values

    def sum(self, values: Any, *, phase: str, what: str) -> Any:
        """Returns `values` times the number of replicas: an estimate of the sum that needs no communication."""
        return values if self.replicas == 1 else tf.nest.map_structure(self._times_replicas, values)

    def round(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on every replica, in cross-replica context. All results are equal; returns one."""
        return super().first(super().run(fn, *args))

    def mean(self, values: Any, *, what: str) -> Any:
        """Returns means over the replicas, in replica context, with one sum. Means of integers are rounded down."""
        summed = super().sum(values, phase=ROUND, what=what)
        if self.replicas == 1:
            return summed
        return tf.nest.map_structure(self._over_replicas, summed)

    def _times_replicas(self, x: Any) -> Any:
        if isinstance(x, tf.IndexedSlices):
            return tf.IndexedSlices(self._times_replicas(x.values), x.indices, x.dense_shape)
        return x * tf.cast(self.replicas, x.dtype)

    def _over_replicas(self, x: tf.Tensor) -> tf.Tensor:
        n = tf.cast(self.replicas, x.dtype)
        return x // n if x.dtype.is_integer else x / n
