"""Workarounds for TensorFlow kernels that fail on empty batches (zero rows).

With oneDNN, a convolution of zero rows returns its input's shape, and the gradient of a max pool aborts the process.
Without oneDNN, the gradient of a depthwise kernel is uninitialised memory. `Pad` with a mirrored border fails too.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import tensorflow as tf

from core.layers.shapes import sizes

_some_rows: contextvars.ContextVar[bool] = contextvars.ContextVar("some_rows", default=False)


@contextlib.contextmanager
def some_rows() -> Iterator[None]:
    """Declares that batches in its `with` block have at least one row. Tracing alone may not know this."""
    token = _some_rows.set(True)
    try:
        yield
    finally:
        _some_rows.reset(token)


def for_any_rows(op: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns `op(x)`, also for zero rows. `op` must compute each row separately.

    If `x` has no rows, it gets one row of zeros, which is removed from the result. If tracing knows that `x` has rows,
    this is exactly `op(x)`. If tracing doesn't know, a non-empty `x` still isn't copied.
    """
    if x.shape[0] or _some_rows.get():
        return op(x)
    rows = sizes(x)[0]
    missing = tf.cast(tf.equal(rows, 0), tf.int32)
    return op(tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]))[:rows]
