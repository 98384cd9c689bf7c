"""Max pooling, with a gradient that is as fast under XLA on a CPU as TensorFlow's kernel."""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.layers.shapes import sizes
from core.tracing import in_xla


def max_pool(x: tf.Tensor, window: Sequence[int], stride: Sequence[int], padding: str) -> tf.Tensor:
    """Returns `tf.nn.max_pool`, whose gradient goes to the first of equal values, with and without XLA.

    XLA's gradient goes to another one of them, and takes ten to thirty times as long as TensorFlow's kernel on a CPU.
    """
    return _by_slices(x, window, stride, padding) if in_xla() else tf.nn.max_pool(x, window, stride, padding)


def _by_slices(x: tf.Tensor, window: Sequence[int], stride: Sequence[int], padding: str) -> tf.Tensor:
    """Returns the pool with a gradient that handles the window's positions one after another."""

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> Any:
        y = tf.nn.max_pool(x, window, stride, padding)

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            (batch, *space, channels), out = sizes(x), sizes(y)[1:-1]
            lacking = [(m - 1) * s + k - n for n, m, k, s in zip(space, out, window, stride, strict=True)]
            around = [_halves(n) if padding == "SAME" else (0, 0) for n in lacking]
            # NaN equals nothing, so no gradient goes to the padding.
            padded = tf.pad(x, [(0, 0), *around, (0, 0)], constant_values=float("nan"))
            shape, strides = [batch, *sizes(padded)[1:-1], channels], [1, *stride, 1]
            dx, free = tf.zeros_like(padded), tf.ones_like(y, tf.bool)
            for place in itertools.product(*map(range, window)):
                begin = [0, *place, 0]
                end = [batch, *(i + (m - 1) * s + 1 for i, m, s in zip(place, out, stride, strict=True)), channels]
                here = free & (tf.strided_slice(padded, begin, end, strides) == y)
                free &= ~here
                given = tf.where(here, dy, tf.zeros([], dy.dtype))
                dx += tf.raw_ops.StridedSliceGrad(shape=shape, begin=begin, end=end, strides=strides, dy=given)
            return tf.slice(dx, [0, *(before for before, _ in around), 0], tf.shape(x))

        return y, gradient

    return pooled(x)


def _halves(lacking: Any) -> tuple[Any, Any]:
    """Returns the padding before and after, as `"SAME"` splits it."""
    lacking = tf.maximum(lacking, 0) if tf.is_tensor(lacking) else max(lacking, 0)
    return lacking // 2, lacking - lacking // 2
