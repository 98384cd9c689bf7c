"""The arithmetic of attention: pure functions of queries, keys and values.

The gradient makes few passes over tensors of shape [..., queries, keys]. All other tensors are smaller by a factor of
the sequence's length, so work is done there if possible. The softmax's gradient needs a sum over keys, which is
computed from the attention's output (Dao et al., 2022). Instead of a large product, its small operand is transposed.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.arguments import check_fraction, check_groups, check_size
from core.layers.dropout import drop
from core.layers.recompute import recompute
from core.layers.shapes import check_axes, check_floats, sizes, widen
from core.random import Rng


def attend(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    causal: bool = False,
    first_query: tf.Tensor | int = 0,
    dropout_rate: float = 0.0,
    rng: Rng | None = None,
    chunk_size: int | None = None,
) -> tf.Tensor:
    """Returns `softmax(q k' / sqrt(size)) v` of `q` [batch, time, heads, size], `k`, `v` [batch, keys, kv_heads, size].

    `mask` is true where attention is allowed: `[batch, heads, time, keys]`, `[batch, time, keys]` or `[batch, keys]`.
    Its axes may have size 1 for a shared mask. With `causal`, query `i` sees the keys up to `first_query + i`. A query
    that sees no key gets zeros. More than `chunk_size` queries are computed in chunks whose scores aren't kept for the
    gradient. Chunks need a `time` that is known while tracing.
    """
    check_fraction(dropout_rate=dropout_rate)
    if chunk_size is not None:
        check_size(chunk_size=chunk_size)
    _check_heads(q, k, v)
    batch, time, heads, size = sizes(q)
    kv_heads = k.shape[2]
    if mask is not None:
        mask = _by_group(mask, q, k)
    q = tf.reshape(q, [batch, time, kv_heads, heads // kv_heads, size])
    q *= tf.cast(1.0 / math.sqrt(size), q.dtype)

    def part(
        q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor | None, first: tf.Tensor | int, rng: Rng | None
    ) -> tf.Tensor:
        if not causal:
            return _attend(q, k, v, mask, mask, dropout_rate, rng)
        seen = first + tf.expand_dims(tf.range(tf.shape(q)[1]), 1) >= tf.range(tf.shape(k)[1])
        seen = tf.reshape(seen, [1, 1, 1, *sizes(seen)])
        if mask is None and isinstance(first_query, int) and first_query >= 0:  # then each query sees a key
            return _attend(q, k, v, seen, None, dropout_rate, rng)
        seen = seen if mask is None else mask & seen
        return _attend(q, k, v, seen, seen, dropout_rate, rng)

    if chunk_size is None or not isinstance(time, int) or time <= chunk_size:
        y = part(q, k, v, mask, first_query, rng)
    else:
        count = -(-time // chunk_size)
        chunks: tuple[tf.Tensor, ...] = (tf.range(count), _chunks(q, 1, count, chunk_size))
        varies = mask is not None and mask.shape[3] != 1
        if varies:
            chunks += (_chunks(mask, 3, count, chunk_size),)

        def chunk(element: tuple[tf.Tensor, ...]) -> tf.Tensor:
            i, part_q, *rest = element
            part_mask = rest[0] if varies else mask
            part_rng = None if rng is None else rng.fold(i)
            return recompute(part)(part_q, k, v, part_mask, first_query + i * chunk_size, part_rng)

        shape = [q.shape[0], chunk_size, *q.shape[2:4], v.shape[-1]]
        # One chunk at a time: computed in parallel, they would need the memory that chunks save.
        y = tf.map_fn(chunk, chunks, parallel_iterations=1, fn_output_signature=tf.TensorSpec(shape, q.dtype))
        y = tf.reshape(tf.transpose(y, [1, 0, 2, 3, 4, 5]), [batch, count * chunk_size, heads, v.shape[-1]])[:, :time]
    return tf.reshape(y, [batch, time, heads, v.shape[-1]])


def _attend(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    mask: tf.Tensor | None,
    seeing: tf.Tensor | None,
    dropout_rate: float,
    rng: Rng | None,
) -> tf.Tensor:
    """Attends with a scaled `q` [batch, time, group, head, size], and `k` and `v` [batch, keys, group, size].

    If `seeing` is given, a query that is false for every key of `seeing` gets zeros.
    """
    if q.dtype == tf.float16:  # its largest value is 65504, which scores may exceed
        q, k = widen(q), widen(k)
    bias = None if mask is None else bias_of(mask)
    y = weighted_values(q, k, v, bias, rng and (lambda weights: drop(weights, rng, dropout_rate, sizes(weights))))
    if seeing is None:
        return y
    # The softmax of a fully masked row is uniform. The result is zeroed here, where the tensor is small.
    sees = tf.transpose(tf.reduce_any(seeing, -1, keepdims=True), [0, 3, 1, 2, 4])
    return tf.where(sees, y, tf.zeros([], y.dtype))


def _check_heads(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> None:
    for name, x, axes in (
        ("q", q, "batch, time, heads, size"),
        ("k", k, "batch, keys, kv_heads, size"),
        ("v", v, "batch, keys, kv_heads, size"),
    ):
        check_axes("attend", x, axes, name)
        check_floats("attend", x, name)
        if x.dtype != q.dtype:
            raise ValueError(
                f"`{name}` of `attend` is {x.dtype.name}, and `q` {q.dtype.name}; give both in one dtype: "
                f"`tf.cast({name}, q.dtype)`."
            )
        if None in x.shape[2:]:
            raise ValueError(
                f"`{name}` of `attend` has shape {x.shape}, whose heads and size aren't known while tracing; give them "
                "by `tf.ensure_shape`."
            )
    expected = tf.TensorShape([q.shape[0], None, None, q.shape[3]])
    if not k.shape.is_compatible_with(expected):
        raise ValueError(
            f"`k` of `attend` has shape {k.shape} for `q` of shape {q.shape}; queries and keys are of the same batch "
            f"and head size: give `k` of shape {expected}."
        )
    expected = tf.TensorShape([q.shape[0], *k.shape[1:3], None])
    if not v.shape.is_compatible_with(expected):
        raise ValueError(
            f"`v` of `attend` has shape {v.shape} for `k` of shape {k.shape}; each key has a value: give `v` of shape "
            f"{expected}."
        )
    check_size(kv_heads=k.shape[2])
    check_groups("kv_heads", k.shape[2], heads=q.shape[2])


def _by_group(mask: tf.Tensor, q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Returns `mask` as `[batch, group, head, time, keys]`; axes that share one mask have size 1."""
    heads, groups = q.shape[2], k.shape[2]
    full = [q.shape[0], heads, q.shape[1], k.shape[1]]
    kept = {2: [0, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}.get(mask.shape.rank, [])
    fits = all(
        size in (1, full[axis], None) or full[axis] is None for size, axis in zip(mask.shape, kept, strict=False)
    )
    if mask.dtype != tf.bool or not kept or not fits:
        raise ValueError(
            f"`mask` is {mask.dtype.name} of shape {mask.shape}; give booleans, true where attention is allowed, of "
            "shape [batch, keys], [batch, time, keys] or [batch, heads, time, keys], here "
            f"{full}, with 1 where all share it."
        )
    for axis in sorted({0, 1, 2, 3} - set(kept)):
        mask = tf.expand_dims(mask, axis)
    if mask.shape[1] == 1:
        return tf.expand_dims(mask, 2)
    batch, _, time, keys = sizes(mask)
    return tf.reshape(mask, [batch, groups, heads // groups, time, keys])


def _chunks(x: tf.Tensor, axis: int, count: int, chunk_size: int) -> tf.Tensor:
    """Pads `axis` of `x` at its end and cuts it into chunks: [count, ...], with `axis` of size `chunk_size`."""
    shape = sizes(x)
    around = [(0, count * chunk_size - shape[axis] if i == axis else 0) for i in range(len(shape))]
    x = tf.reshape(tf.pad(x, around), [*shape[:axis], count, chunk_size, *shape[axis + 1 :]])
    return tf.transpose(x, [axis, *range(axis), *range(axis + 1, len(shape) + 1)])


Drop = Callable[[tf.Tensor], tf.Tensor]


def weighted_values(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, bias: tf.Tensor | None, drop: Drop | None = None
) -> tf.Tensor:
    """Returns `softmax(q k') v` [batch, time, groups, heads, value size]; a negative `bias` replaces its score.

    `q` is [batch, time, groups, heads, size], `k` and `v` are [batch, keys, groups, size]. The `bias` broadcasts to
    [batch, groups, heads, time, keys], and has no gradient. `drop` is applied to the softmax, which has that shape.
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
    """Returns 0.0 where `mask` is true, and elsewhere a score so low that the softmax makes it zero."""
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
