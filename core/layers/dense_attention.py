"""Attention with all scores in memory.

Tensors of shape [..., queries, keys] are the largest, so the gradient passes over them rarely and works on smaller
tensors instead. The softmax's gradient needs a sum over keys. It is computed from the attention's output (Dao et al.,
2022). To avoid transposing a large matmul result, the code transposes its small operand.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.layers.products import product
from core.layers.shapes import sizes, widen

Drop = Callable[[tf.Tensor], tf.Tensor]


def weighted_values(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    bias: tf.Tensor | None,
    drop: Drop | None = None,
    *,
    added: tf.Tensor | None = None,
    cap: float | None = None,
) -> tf.Tensor:
    """Returns `softmax(q k' + added) v` [batch, time, groups, heads, value size]; a negative `bias` replaces its score.

    `q` is [batch, time, groups, heads, size]. `k` and `v` are [batch, keys, groups, size]. The softmax is [batch,
    groups, heads, time, keys], and `drop` is applied to it. `bias` and `added` broadcast to the same shape. `added` has
    a gradient, and `bias` has none. With a `cap`, products p are cap tanh(p / cap).
    """

    @tf.custom_gradient
    def run(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, *added: tf.Tensor) -> Any:
        batch, time, groups, heads, _ = sizes(q)
        keys = sizes(k)[1]
        k_rows, v_rows = tf.transpose(k, [0, 2, 1, 3]), tf.transpose(v, [0, 2, 1, 3])
        # The heads of a group are additional queries to the same keys: one matmul, and no copy of the keys per head.
        scores = widen(product(_by_head(q), k_rows, transpose_b=True))
        capped = None if cap is None else tf.tanh(scores / cap)
        scores = scores if capped is None else cap * capped
        by_head = [batch, groups, heads, time, keys]
        for x in added:
            scores = tf.reshape(tf.reshape(scores, by_head) + tf.cast(x, scores.dtype), sizes(scores))
        if bias is not None:
            wide = tf.cast(bias, scores.dtype)
            wide, scores = (tf.squeeze(wide, 2), scores) if heads == 1 else (wide, tf.reshape(scores, by_head))
            # Selected, not added: the score of a masked key may be NaN, and must not reach any query.
            scores = tf.where(wide < 0.0, wide, scores)
        softmax = tf.reshape(tf.nn.softmax(scores), [batch, groups, heads * time, keys])
        weights = tf.cast(softmax, v.dtype)
        if drop is not None:
            weights = tf.reshape(drop(tf.reshape(weights, by_head)), [batch, groups, heads * time, keys])
        y = product(weights, v_rows)
        y = tf.transpose(tf.reshape(y, [batch, groups, heads, time, v.shape[-1]]), [0, 3, 1, 2, 4])

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Summed over keys, weights times their gradient equal the result times its gradient.
            mean = tf.transpose(tf.reduce_sum(widen(dy) * widen(y), -1), [0, 2, 3, 1])
            mean = tf.reshape(mean, [batch, groups, heads * time, 1])
            dweights = widen(product(_by_head(dy), v_rows, transpose_b=True))
            dscores = softmax * (dweights - mean) if drop is None else widen(weights) * dweights - softmax * mean
            dadded = [tf.cast(sum_like(tf.reshape(dscores, by_head), x), x.dtype) for x in added]
            if capped is not None:  # a hidden key has a gradient of zero, and maybe a product that isn't finite
                dscores = tf.math.multiply_no_nan(1.0 - tf.square(capped), dscores)
            dscores = tf.cast(dscores, q.dtype)
            dq = tf.reshape(product(dscores, k_rows), [batch, groups, heads, time, q.shape[-1]])
            dk, dv = product(_turned(q), dscores), product(_turned(dy), weights)
            dq, dk, dv = (
                tf.transpose(dq, [0, 3, 1, 2, 4]),
                tf.transpose(dk, [0, 3, 1, 2]),
                tf.transpose(dv, [0, 3, 1, 2]),
            )
            return dq, dk, dv, *dadded

        return y, gradient

    return run(q, k, v) if added is None else run(q, k, v, added)


def bias_of(mask: tf.Tensor) -> tf.Tensor:
    """Returns 0.0 where `mask` is true. Elsewhere it returns a score so low that the softmax makes it zero."""
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


def sum_like(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Sums `x` over the axes that have size 1 in `like`."""
    return tf.reduce_sum(x, [axis for axis, size in enumerate(like.shape) if size == 1], keepdims=True)
