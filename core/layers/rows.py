"""Kernels of TensorFlow that are wrong for no rows, or end the process, made right in one place.

Where TensorFlow takes oneDNN, a convolution of no rows comes back in its input's shape and the gradient of a max pool
aborts; where it doesn't, the gradient of a depthwise kernel is uninitialised memory. A mirrored border wants rows too.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import tensorflow as tf

from core.layers.shapes import sizes

_some_rows: contextvars.ContextVar[bool] = contextvars.ContextVar("some_rows", default=False)


@contextlib.contextmanager
def some_rows() -> Iterator[None]:
    """Within it, what is traced is for one row or more, though their number isn't known."""
    token = _some_rows.set(True)
    try:
        yield
    finally:
        _some_rows.reset(token)


def for_any_rows(op: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns `op(x)`, where `op` computes each row by itself: no rows become one of zeros, which is cut off again.

    Where it is known while tracing that there are rows, this is `op(x)` and nothing else. Elsewhere rows
    are passed on without a copy, because TensorFlow makes none to pad by nothing or to cut nothing off.
    """
    if x.shape[0] or _some_rows.get():
        return op(x)
    rows = sizes(x)[0]
    missing = tf.cast(tf.equal(rows, 0), tf.int32)
    return op(tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]))[:rows]
