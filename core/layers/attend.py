"""The arithmetic of attention, as pure functions of queries, keys and values.

Short sequences use `dense_attention`, which keeps all scores for the gradient; long ones use `tiled_attention`.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from core.arguments import check_fraction, check_groups, check_positive, check_size
from core.layers.dense_attention import bias_of, weighted_values
from core.layers.dropout import drop
from core.layers.shapes import check_axes, check_floats, sizes, widen
from core.layers.tiled_attention import Sight, Tiled, grid_of
from core.random import Rng

LONG = 1024  # queries; scores of more are computed in tiles, by default
_TILE = 256  # queries and keys of a causal tile; smaller matmuls are slower, larger tiles have more hidden keys
_ROWS = 128  # queries whose scores, of all heads, are as many as those of a tile that isn't causal


def attend(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    documents: tf.Tensor | None = None,
    bias: tf.Tensor | None = None,
    slopes: tf.Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    first_query: tf.Tensor | int = 0,
    score_cap: float | None = None,
    dropout_rate: float = 0.0,
    rng: Rng | None = None,
    chunk_size: int | None = LONG,
) -> tf.Tensor:
    """Returns `softmax(q k' / sqrt(size)) v` of `q` [batch, time, heads, size], `k`, `v` [batch, keys, kv_heads, size].

    `mask` is true where attention is allowed: `[batch, heads, time, keys]`, `[batch, time, keys]` or `[batch, keys]`.
    Its axes may have size 1 for a shared mask. `documents` [batch, time] are integers: a query sees only keys of its
    document. With `causal`, query `i` sees keys up to `first_query + i`. With a `window` too, it sees only the last
    `window` of these keys. A query that sees no key gets zeros.

    `bias` is added to the scores: `[batch, heads, time, keys]`, or 1 for shared axes. `slopes` [heads] subtract `slope
    * distance` from the scores (ALiBi: Press et al., 2022). `bias` and `slopes` have gradients. With a `score_cap` c,
    scores s are c·tanh(s / c) before that (Gemma Team, 2024).

    If there are more than `chunk_size` queries, the scores are computed in tiles of at most `chunk_size` queries and
    keys, or twice as many keys without `causal`. Tiles aren't kept for the gradient. A `window` also makes tiles of
    shorter sequences, to skip hidden keys. Tiles need a `time` and a number of keys that are known while tracing.
    `chunk_size=None` turns tiles off. Tiles change results by rounding only, except that dropout draws another mask.
    """
    check_fraction(dropout_rate=dropout_rate)
    if chunk_size is not None:
        check_size(chunk_size=chunk_size)
    _check_heads(q, k, v)
    check_window(window, causal)
    if score_cap is not None:
        check_positive(score_cap=score_cap)
    batch, time, heads, size = sizes(q)
    kv_heads = k.shape[2]
    sight = Sight(causal, window, first_query)
    if mask is not None:
        _check_mask(mask, q, k)
        mask = _by_group(mask, q, k)
    if documents is not None:
        _check_documents(documents, q, k)
    if bias is not None:
        _check_bias(bias, q, k)
        bias = _by_group(bias, q, k)
    if slopes is not None:
        _check_slopes(slopes, heads)
        slopes = tf.reshape(slopes, [1, kv_heads, heads // kv_heads, 1, 1])
    q = tf.reshape(q, [batch, time, kv_heads, heads // kv_heads, size])
    q *= tf.cast(1.0 / math.sqrt(size), q.dtype)
    if q.dtype == tf.float16:  # its largest value is 65504, which scores may exceed
        q, k = widen(q), widen(k)
    given = _Given(q, k, v, sight, mask, documents, bias, slopes, dropout_rate, rng, score_cap)
    tile = _tile(q, k.shape[1], sight, chunk_size)
    y = _attend_dense(given) if tile is None else _attend_tiled(given, tile)
    return tf.reshape(y, [batch, time, heads, v.shape[-1]])


def _tile(q: tf.Tensor, keys: object, sight: Sight, chunk_size: int | None) -> tuple[int, int, int] | None:
    """Returns the most groups, queries and keys of a tile, or `None` to compute all scores at once."""
    _, time, groups, *_ = q.shape
    if chunk_size is None or not isinstance(time, int) or not isinstance(keys, int):
        return None
    # The scores of a short sequence need little memory, but those outside of a window are wasted.
    window = sight.window
    if time <= (chunk_size if window is None else min(chunk_size, 2 * max(window, _TILE))):
        return None
    if not sight.causal:  # one group at a time, because few large matmuls are faster than many small ones
        return 1, min(chunk_size, _ROWS * groups), 2 * chunk_size
    tile = min(chunk_size, _TILE if window is None else min(_TILE, max(window, _TILE // 8)))
    return groups, tile, tile


class _Given(NamedTuple):
    """The arguments, with a scaled `q` [batch, time, group, head, size], and `k`, `v` [batch, keys, group, size]."""

    q: tf.Tensor
    k: tf.Tensor
    v: tf.Tensor
    sight: Sight
    mask: tf.Tensor | None
    documents: tf.Tensor | None
    bias: tf.Tensor | None
    slopes: tf.Tensor | None
    dropout_rate: float
    rng: Rng | None
    cap: float | None


def _attend_dense(given: _Given) -> tf.Tensor:
    """Attends with all scores at once."""
    q, k, v, sight, mask, documents, bias, slopes, dropout_rate, rng, cap = given
    time, keys = tf.range(tf.shape(q)[1]), tf.range(tf.shape(k)[1])
    if documents is not None:
        same = tf.expand_dims(documents, 2) == tf.expand_dims(documents, 1)
        same = tf.expand_dims(tf.expand_dims(same, 1), 1)
        mask = same if mask is None else mask & same
    if bias is not None:  # a bias of minus infinity hides a key, also from a query that sees no other
        shown = bias > -math.inf
        mask = shown if mask is None else mask & shown
    seeing = mask
    if sight.causal:
        seen = sight.seen(time, keys)
        seen = tf.reshape(seen, [1, 1, 1, *sizes(seen)])
        # If it's certain that each query sees a key, no result has to be replaced by zeros.
        sure = mask is None and sight.window is None and isinstance(sight.first_query, int) and sight.first_query >= 0
        mask = seen if mask is None else mask & seen
        seeing = None if sure else mask
    if slopes is not None:
        sloped = -slopes * tf.cast(tf.abs(sight.distance(time, keys)), slopes.dtype)
        bias = sloped if bias is None else bias + sloped
    y = weighted_values(
        q,
        k,
        v,
        None if mask is None else bias_of(mask),
        rng and (lambda weights: drop(weights, rng, dropout_rate, sizes(weights))),
        added=bias,
        cap=cap,
    )
    if seeing is None:
        return y
    # The softmax of a fully masked row is uniform. The result is zeroed here, where the tensor is small.
    sees = tf.transpose(tf.reduce_any(seeing, -1, keepdims=True), [0, 3, 1, 2, 4])
    return tf.where(sees, y, tf.zeros([], y.dtype))


def _attend_tiled(given: _Given, largest: tuple[int, int, int]) -> tf.Tensor:
    """Returns the same as `_attend_dense`, with scores in tiles of at most `largest` groups, queries and keys."""
    q, k, v, sight, mask, documents, bias, slopes, dropout_rate, rng, cap = given
    batch, time, groups, heads, _ = sizes(q)
    grid = grid_of(sight, (groups, time, k.shape[1]), largest)
    by_head = [grid.stack(tf.transpose(q, [0, 2, 3, 1, 4]), 1, 3, None)]
    by_head += [grid.stack(tf.transpose(x, [0, 2, 1, 3]), 1, None, 2) for x in (k, v)]
    added = [grid.stack(x, 1, 3, 4) for x in (bias, slopes) if x is not None]
    by_document = None
    if documents is not None:
        by_document = grid.stack(documents, None, 1, None), grid.stack(documents, None, None, 1)
    tiled = Tiled(
        grid,
        sight,
        k.shape[1],
        mask=None if mask is None else grid.stack(mask, 1, 3, 4),
        documents=by_document,
        biased=bias is not None,
        sloped=slopes is not None,
        dropout_rate=dropout_rate,
        rng=rng if dropout_rate else None,
        cap=cap,
    )
    y = tiled([*by_head, *added]).y
    y = tf.reshape(y, [*grid.counts[:2], *sizes(y)[1:]])
    y = tf.reshape(tf.transpose(y, [2, 1, 5, 0, 3, 4, 6]), [batch, -1, groups, heads, v.shape[-1]])
    return y[:, :time]


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


def check_window(window: int | None, causal: bool) -> None:
    """Raises a `ValueError` unless `window` is `None`, or a whole number for causal attention."""
    if window is None:
        return
    check_size(window=window)
    if not causal:
        raise ValueError(
            f"`window` is {window}, but `causal` is false; a window holds a query's own key and the keys before it: "
            "give `causal=True`, or leave `window` out."
        )


def _check_documents(documents: tf.Tensor, q: tf.Tensor, k: tf.Tensor) -> None:
    check_axes("attend", documents, "batch, time", "documents")
    expected = tf.TensorShape([q.shape[0], q.shape[1]])
    fits = expected.is_compatible_with(documents.shape) and k.shape[1:2].is_compatible_with(documents.shape[1:])
    if not documents.dtype.is_integer or not fits:
        raise ValueError(
            f"`documents` of `attend` are {documents.dtype.name} of shape {documents.shape}, for {q.shape[1]} queries "
            f"and {k.shape[1]} keys. They number the documents of one sequence: give integers of shape {expected}, and "
            "as many keys as queries."
        )


def _check_mask(mask: tf.Tensor, q: tf.Tensor, k: tf.Tensor) -> None:
    full = _full(q, k)
    kept = _KEPT.get(mask.shape.rank, [])
    if mask.dtype != tf.bool or not kept or not _fits(mask, [full[axis] for axis in kept]):
        raise ValueError(
            f"`mask` is {mask.dtype.name} of shape {mask.shape}; give booleans, true where attention is allowed, of "
            "shape [batch, keys], [batch, time, keys] or [batch, heads, time, keys], here "
            f"{full}, with 1 where all share it."
        )


def _check_bias(bias: tf.Tensor, q: tf.Tensor, k: tf.Tensor) -> None:
    check_axes("attend", bias, "batch, heads, time, keys", "bias")
    check_floats("attend", bias, "bias")
    if not _fits(bias, _full(q, k)):
        raise ValueError(
            f"`bias` of `attend` has shape {bias.shape}, which doesn't broadcast to the scores: give "
            f"[batch, heads, time, keys], here {_full(q, k)}, with 1 where all share it."
        )


def _check_slopes(slopes: tf.Tensor, heads: int) -> None:
    check_axes("attend", slopes, "heads", "slopes")
    check_floats("attend", slopes, "slopes")
    if not slopes.shape.is_compatible_with([heads]):
        raise ValueError(f"`slopes` of `attend` have shape {slopes.shape}; give one per head: [{heads}].")


_KEPT = {2: [0, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}  # axes of [batch, heads, time, keys] in a tensor of this rank


def _full(q: tf.Tensor, k: tf.Tensor) -> list[int | None]:
    return [q.shape[0], q.shape[2], q.shape[1], k.shape[1]]


def _fits(x: tf.Tensor, full: list[int | None]) -> bool:
    return all(size in (1, most, None) or most is None for size, most in zip(x.shape, full, strict=True))


def _by_group(x: tf.Tensor, q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Returns a mask or bias `x` as `[batch, group, head, time, keys]`; axes that share one value have size 1."""
    heads, groups = q.shape[2], k.shape[2]
    for axis in sorted({0, 1, 2, 3} - set(_KEPT[x.shape.rank])):
        x = tf.expand_dims(x, axis)
    if x.shape[1] == 1:
        return tf.expand_dims(x, 2)
    batch, _, time, keys = sizes(x)
    return tf.reshape(x, [batch, groups, heads // groups, time, keys])
