"""How long each replica takes by itself: they take turns, so that none has to share cores with another, nor waits."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.distribution.exchange import replica_here
from core.distribution.silent_exchange import SilentExchange


class TurnsExchange(SilentExchange):
    """A door through which nothing crosses, and whose replicas run one after the other, each by the clock."""

    def __init__(self, strategy: tf.distribute.Strategy, *, reduce_in: tf.DType | None = None):
        super().__init__(strategy, reduce_in=reduce_in)
        with tf.device(self.device):
            self._seconds = [tf.Variable(0.0, dtype=tf.float64, trainable=False) for _ in range(self.replicas)]
        self._last: tf.Tensor | None = None  # when the replica before has ended

    def seconds(self) -> list[float]:
        """Returns how long each replica has been at it so far."""
        return [float(variable) for variable in self._seconds]

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on every replica, each once the one before it is done."""
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
    """Returns the time once all these are there: on the host, as a GPU is asked before it has them."""
    with tf.device("CPU:0"):
        seen = [tf.identity(tf.reshape(x, [-1])[:1]) for x in values if tf.is_tensor(x)]
        with tf.control_dependencies([*seen, *before]):
            return tf.timestamp()
