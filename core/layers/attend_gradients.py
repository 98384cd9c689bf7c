"""The arithmetic of attention, with a gradient that makes few passes over tensors of size queries by keys.

All other tensors are smaller by a factor of the sequence's length, so work is moved to them. The gradient of the
softmax takes its sum over keys from the result (Dao et al., 2022). A product that is needed transposed transposes its
small operand instead.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.layers.shapes import sizes, widen

Drop = Callable[[tf.Tensor], tf.Tensor]


def weighted_values(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, bias: tf.Tensor | None, drop: Drop | None = None
) -> tf.Tensor:
    """Returns `softmax(q k') v` [batch, time, groups, heads, value size]; scores count where `bias` isn't negative.

    `q` is [batch, time, groups, heads, size], `k` and `v` are [batch, keys, groups, size]; the `bias` broadcasts to
    [batch, groups, heads, time, keys], and has no gradient. Weights go through `drop`, in the same shape.
    """

    @tf.custom_gradient
    def run(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> Any:
        batch, time, groups, heads, _ = sizes(q)
        keys = sizes(k)[1]
        k_rows, v_rows = tf.transpose(k, [0, 2, 1, 3]), tf.transpose(v, [0, 2, 1, 3])
        # The heads of a group are additional queries to the same keys: one matmul, and no copy of the keys per head.
        scores = widen(tf.matmul(_by_head(q), k_rows, transpose_b=True))
        by_head = [batch, groups, heads, time, keys]
        if bias is not None:
            wide = tf.cast(bias, scores.dtype)
            wide, scores = (tf.squeeze(wide, 2), scores) if heads == 1 else (wide, tf.reshape(scores, by_head))
            # Selected, not added: the score of a masked key may be NaN, and must not reach any query.
            scores = tf.where(wide < 0.0, wide, scores)
        softmax = tf.reshape(tf.nn.softmax(scores), [batch, groups, heads * time, keys])
        weights = tf.cast(softmax, v.dtype)
        if drop is not None:
            weights = tf.reshape(drop(tf.reshape(weights, by_head)), [batch, groups, heads * time, keys])
        y = tf.matmul(weights, v_rows)
        y = tf.transpose(tf.reshape(y, [batch, groups, heads, time, v.shape[-1]]), [0, 3, 1, 2, 4])

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # Summed over keys, weights times their gradient equal the result times its gradient.
            mean = tf.transpose(tf.reduce_sum(widen(dy) * widen(y), -1), [0, 2, 3, 1])
            mean = tf.reshape(mean, [batch, groups, heads * time, 1])
            dweights = widen(tf.matmul(_by_head(dy), v_rows, transpose_b=True))
            dscores = softmax * (dweights - mean) if drop is None else widen(weights) * dweights - softmax * mean
            dscores = tf.cast(dscores, q.dtype)
            dq = tf.reshape(tf.matmul(dscores, k_rows), [batch, groups, heads, time, q.shape[-1]])
            dk, dv = tf.matmul(_turned(q), dscores), tf.matmul(_turned(dy), weights)
            return tf.transpose(dq, [0, 3, 1, 2, 4]), tf.transpose(dk, [0, 3, 1, 2]), tf.transpose(dv, [0, 3, 1, 2])

        return y, gradient

    return run(q, k, v)


def bias_of(mask: tf.Tensor) -> tf.Tensor:
    """Returns zero where `mask` is true, and elsewhere a score so low that its weight is zero."""
    # A logarithm, because XLA computes it once; it would repeat a selection wherever scores are read, in each
    # layer.
    return tf.maximum(tf.math.log(tf.cast(mask, tf.float32)), 0.5 * tf.float32.min)


def _by_head(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [batch, time, groups, heads, size] as [batch, groups, heads * time, size]."""
    batch, time, groups, heads, size = sizes(x)
    return tf.reshape(tf.transpose(x, [0, 2, 3, 1, 4]), [batch, groups, heads * time, size])


def _turned(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [batch, time, groups, heads, size] as [batch, groups, size, heads * time]."""
    batch, time, groups, heads, size = sizes(x)
    return tf.reshape(tf.transpose(x, [0, 2, 4, 3, 1]), [batch, groups, size, heads * time])
