"""The door between replicas of local steps: shut within a round, in which each is a run of its own, open at its end."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange

ROUND = "round"  # stands for the phases of all its steps in the ledger


class LocalExchange(Exchange):
    """What the engine asks of a strategy while a replica takes whole steps by itself, in replica context."""

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` here: this is one replica already."""
        return fn(*args)

    def first(self, values: Any) -> Any:
        """Returns the values of this replica, which goes by no other."""
        return values

    def sum(self, values: Any, *, phase: str, what: str) -> Any:
        """Returns as many times the replica's own part as there are replicas: a guess of the sum that nobody sends."""
        return values if self.replicas == 1 else tf.nest.map_structure(self._times_replicas, values)

    def round(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on every replica, in cross-replica context; returns what it returned, equal on all, once."""
        return super().first(super().run(fn, *args))

    def mean(self, values: Any, *, what: str) -> Any:
        """Returns the means of a nest over the replicas, in replica context, by one sum; integers are rounded down."""
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
