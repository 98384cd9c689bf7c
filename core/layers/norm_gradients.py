"""Norms of the last axis, with a gradient in few passes."""

from typing import Any

import tensorflow as tf

from core.tracing import in_xla_on_cpu


def normalised(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor | None, *, epsilon: float, centred: bool) -> tf.Tensor:
    """Returns `x` [rows, size] minus its mean, if `centred`, over its deviation, times `scale`, plus `offset`."""
    size = x.shape[-1]

    @tf.custom_gradient
    def run(x: tf.Tensor, scale: tf.Tensor, *offset: tf.Tensor) -> Any:
        share = tf.fill([size], tf.constant(1.0 / size, x.dtype))
        wide = x
        if centred:
            wide = x - x[:, :1]  # avoids rounding with a large mean: see `spread`
            wide -= _along_rows(wide, share)
        factor = tf.math.rsqrt(_along_rows(tf.square(wide), share) + epsilon)
        unit = wide * factor
        y = unit * scale

        def gradient(dy: tf.Tensor) -> Any:
            dscale = dy * unit
            dx = dy * scale - unit * _along_rows(dscale, scale * share)
            if centred:
                dx -= _along_rows(dy, scale * share)
            sums = [tf.reduce_sum(z, 0) for z in ([dscale, dy] if offset else [dscale])]
            return dx * factor, *sums

        return (tf.nn.bias_add(y, offset[0]) if offset else y), gradient

    return run(x, scale, *([] if offset is None else [offset]))


def _along_rows(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the sums of `x` [rows, size] times `weights` [size], as [rows, 1]."""
    # XLA adds numbers up one after another, each waiting for the last.
    if in_xla_on_cpu():
        return tf.matmul(x, weights[:, tf.newaxis])
    return tf.reduce_sum(x * weights, -1, keepdims=True)
