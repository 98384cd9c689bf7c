"""Kernels of TensorFlow that are wrong for no rows, or end the process, made right in one place.

Where TensorFlow takes oneDNN, a convolution of no rows comes back in its input's shape and the gradient of a max pool
aborts; where it doesn't, the gradient of a depthwise kernel is uninitialised memory. A mirrored border wants rows too.
"""

from collections.abc import Callable

import tensorflow as tf

from core.layers.shapes import sizes


def for_any_rows(op: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns `op(x)`, where `op` computes each row by itself: no rows become one of zeros, which is cut off again.

    Where the number of rows is known while tracing, and isn't none, this is `op(x)` and nothing else. Elsewhere rows
    are passed on without a copy, because TensorFlow makes none to pad by nothing or to cut nothing off.
    """
    if x.shape[0]:
        return op(x)
    rows = sizes(x)[0]
    missing = tf.cast(tf.equal(rows, 0), tf.int32)
    return op(tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]))[:rows]
