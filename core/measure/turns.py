"""The time of each replica alone: they run in turns, so that none shares cores or waits."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.distribution.exchange import replica_here
from core.distribution.silent_exchange import SilentExchange


class TurnsExchange(SilentExchange):
    """An exchange without communication, whose replicas run one after another, each timed."""

    def __init__(self, strategy: tf.distribute.Strategy, *, reduce_in: tf.DType | None = None):
        super().__init__(strategy, reduce_in=reduce_in)
        with tf.device(self.device):
            self._seconds = [tf.Variable(0.0, dtype=tf.float64, trainable=False) for _ in range(self.replicas)]
        self._last: tf.Tensor | None = None  # when the previous replica ended

    def seconds(self) -> list[float]:
        """Returns each replica's total time so far."""
        return [float(variable) for variable in self._seconds]

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on every replica, each after the previous one is done."""
        return super().run(lambda *parts: self._timed(fn, *parts), *args)

    def _timed(self, fn: Callable[..., Any], *args: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        before = [self._last] if self._last is not None and self._last.graph is graph else []
        began = _now(tf.nest.flatten(args, expand_composites=True), before)
        with tf.control_dependencies([began]):
            result = fn(*args)
        ended = self._last = _now(tf.nest.flatten(result, expand_composites=True))
        self._seconds[replica_here() or 0].assign_add(ended - began)
        return result


def _now(values: list[Any], before: list[tf.Tensor] = []) -> tf.Tensor:  # noqa: B006  # it is read
    """Returns the time when all these are computed; on the host, since a GPU's clock would be read too early."""
    with tf.device("CPU:0"):
        seen = [tf.identity(tf.reshape(x, [-1])[:1]) for x in values if tf.is_tensor(x)]
        with tf.control_dependencies([*seen, *before]):
            return tf.timestamp()
