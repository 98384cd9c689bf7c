"""Workarounds for TensorFlow kernels that fail on batches without rows.

With oneDNN, a convolution of no rows returns its input's shape, and the gradient of a max pool aborts the process.
Without oneDNN, the gradient of a depthwise kernel is uninitialised memory. A mirrored border needs rows too.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import tensorflow as tf

from core.layers.shapes import sizes

_some_rows: contextvars.ContextVar[bool] = contextvars.ContextVar("some_rows", default=False)


@contextlib.contextmanager
def some_rows() -> Iterator[None]:
    """Declares that code traced in this context gets at least one row, although the number isn't known."""
    token = _some_rows.set(True)
    try:
        yield
    finally:
        _some_rows.reset(token)


def for_any_rows(op: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns `op(x)`, where `op` computes each row separately; no rows become one of zeros, which is removed again.

    If tracing knows that there are rows, this is exactly `op(x)`. Otherwise rows are passed without a copy: TensorFlow
    makes none for an empty padding or a full slice.
    """
    if x.shape[0] or _some_rows.get():
        return op(x)
    rows = sizes(x)[0]
    missing = tf.cast(tf.equal(rows, 0), tf.int32)
    return op(tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]))[:rows]
