"""Scaled dot-product attention (Vaswani et al., 2017), with memory linear in the length of the sequence."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.arguments import check_fraction, check_groups, check_positive, check_size
from core.initializers import Initializer
from core.layers.attend import LONG, attend, check_window
from core.layers.linear import Linear, linear
from core.layers.norm import RMSNorm
from core.layers.rotary import RotaryScaling, rotary
from core.layers.shapes import check_axes, check_last, merge_leading, nan_unless, sizes
from core.module import Module
from core.precision import compute_dtype
from core.random import Rng
from core.tracing import computes_by_parts, in_xla

_JOINED = 2**20  # values of three matrices; larger ones use all cores one by one, and shouldn't be copied


class Cache(NamedTuple):
    """Keys and values of earlier positions, for decoding: `length` are filled, and `keys.shape[1]` fit."""

    keys: tf.Tensor  # [batch, room, kv_heads, head_size]
    values: tf.Tensor
    length: tf.Tensor  # scalar int32


class MultiHeadAttention(Module):
    """Multi-head attention of a sequence to itself or to a `context`: `[batch, time, size]` to `[batch, time, size]`.

    If `num_kv_heads` is below `num_heads`, several heads share keys and values (Ainslie et al., 2023). `causal`
    hides later positions. With a `window`, a position sees only the last `window` positions. `rotary_base` turns on
    rotary positions (the paper's base is 10000), which `rotary_scaling` slows down. `alibi` lowers scores in
    proportion to the distance (Press et al., 2022). With `qk_epsilon`, each head's queries and keys pass an
    `RMSNorm` with this epsilon (Henry et al., 2020). With a `score_cap` c, scores s are c·tanh(s / c).
    `qkv_bias` replaces `bias` for queries, keys and values. `out_init` initializes the output matrix.

    More than `chunk_size` queries are computed in tiles of at most `chunk_size` queries and keys. The gradient
    recomputes the scores of the tiles (Dao et al., 2022). Tiles need a number of queries that is known while tracing.

    `mask` is true where attention is allowed. It broadcasts to `[batch, heads, queries, keys]`, `[batch, queries,
    keys]` or `[batch, keys]`. With `documents` [batch, time], integers, a position sees only positions of its document.
    A query that sees no key gets zeros.
    """

    def __init__(
        self,
        size: int,
        num_heads: int,
        *,
        rng: Rng,
        num_kv_heads: int | None = None,
        head_size: int | None = None,
        context_size: int | None = None,
        causal: bool = False,
        window: int | None = None,
        rotary_base: float | None = None,
        rotary_scaling: RotaryScaling | None = None,
        alibi: bool = False,
        qk_epsilon: float | None = None,
        score_cap: float | None = None,
        dropout_rate: float = 0.0,
        bias: bool = True,
        qkv_bias: bool | None = None,
        chunk_size: int = LONG,
        w_init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_size(size=size, num_heads=num_heads, num_kv_heads=num_kv_heads, chunk_size=chunk_size)
        check_groups("num_kv_heads", num_kv_heads, num_heads=num_heads)
        check_fraction(dropout_rate=dropout_rate)
        if rotary_base is not None:
            check_positive(rotary_base=rotary_base)
        if head_size is None:
            check_groups("num_heads", num_heads, size=size)
            head_size = size // num_heads
        check_size(head_size=head_size)
        if rotary_base is not None and head_size % 2:
            raise ValueError(f"`head_size` is {head_size}, but rotary positions turn pairs: make it even.")
        if context_size is not None and (causal or alibi or rotary_base is not None):
            raise ValueError(
                f"`context_size` is {context_size}, but `causal`, `rotary_base` and `alibi` compare positions of one "
                "sequence; leave them out for attention to a context."
            )
        check_window(window, causal)
        if score_cap is not None:
            check_positive(score_cap=score_cap)
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.causal, self.rotary_base, self.dropout_rate = causal, rotary_base, dropout_rate
        self.rotary_scaling = rotary_scaling
        self.chunk_size, self.takes_context = chunk_size, context_size is not None
        self.window, self.alibi, self.score_cap = window, alibi, score_cap

        def projection(name: str, in_size: int, heads: int) -> Linear:
            with_bias = bias if qkv_bias is None else qkv_bias
            return Linear(in_size, heads * head_size, rng=rng.fold(name), bias=with_bias, w_init=w_init)

        self.query = projection("query", size, num_heads)
        self.key = projection("key", context_size or size, num_kv_heads)
        self.value = projection("value", context_size or size, num_kv_heads)
        self.out = Linear(num_heads * head_size, size, rng=rng.fold("out"), bias=bias, w_init=out_init or w_init)
        self.query_norm = self.key_norm = None
        if qk_epsilon is not None:
            self.query_norm, self.key_norm = (RMSNorm(head_size, epsilon=qk_epsilon) for _ in range(2))

    def __call__(
        self,
        x: tf.Tensor,
        rng: Rng | None = None,
        *,
        context: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        documents: tf.Tensor | None = None,
    ) -> tf.Tensor:
        check_axes(self, x, "batch, time, size")
        if (context is not None) != self.takes_context:
            raise ValueError(
                f"`context` was {'not ' if context is None else ''}given, but the layer was made "
                f"{'with' if self.takes_context else 'without'} `context_size`; give both or neither."
            )
        joined = self._joined(x) if context is None else None
        q, k, v = self._by_head(joined or self._apart(x, x if context is None else context), 0)
        y = self._attend(q, k, v, mask=mask, documents=documents, dropout_rate=self.dropout_rate, rng=rng)
        return self.out(_join(y))

    def empty_cache(self, batch_size: int | tf.Tensor, room: int, dtype: tf.DType | None = None) -> Cache:
        """Returns an empty cache for `room` positions. The default of `dtype` is the phase's dtype."""
        check_size(room=room)
        zeros = tf.zeros([batch_size, room, self.num_kv_heads, self.head_size], dtype or compute_dtype())
        return Cache(zeros, zeros, tf.constant(0))

    def decode(self, x: tf.Tensor, cache: Cache) -> tuple[tf.Tensor, Cache]:
        """Returns the outputs for `x`, which continues the sequence in `cache`, and the cache extended with `x`.

        `x` is `[batch, time, size]`. One call with all positions gives the same outputs as one call per position. A
        cache without room for `x` raises an error. In a compiled program, the outputs are `nan` instead.
        """
        check_axes(self, x, "batch, time, size")
        if not self.causal or self.takes_context:
            raise ValueError("`decode` goes from past to future; make the layer with `causal=True` and no context.")
        time, room = sizes(x)[1], cache.keys.shape[1]
        full = f"`cache` has room for {room} positions"
        if isinstance(time, int) and room is not None and time > room:
            raise ValueError(f"`x` has {time} positions, but {full}; make a larger one.")
        after = cache.length + time
        tf.debugging.assert_less_equal(after, sizes(cache.keys)[1], f"{full}; make a larger one")
        q, k, v = self._by_head(self._apart(x, x), cache.length)
        keys, values = (written(old, new, cache.length) for old, new in ((cache.keys, k), (cache.values, v)))
        # A query sees no key beyond its own position, so it doesn't see the unfilled ones.
        y = self._attend(q, keys, values, first_query=cache.length)
        y = nan_unless(after <= sizes(cache.keys)[1], self.out(_join(y)))
        return y, Cache(keys, values, after)

    def _attend(self, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, **options: Any) -> tf.Tensor:
        slopes = tf.constant(alibi_slopes(self.num_heads), q.dtype) if self.alibi else None
        # DTensor can't lay out the lists of tensors that loops over tiles fill.
        chunk_size = None if computes_by_parts(self.query.w) else self.chunk_size
        options.update(causal=self.causal, window=self.window, slopes=slopes, score_cap=self.score_cap)
        return attend(q, k, v, chunk_size=chunk_size, **options)

    def _apart(self, x: tf.Tensor, context: tf.Tensor) -> Sequence[tf.Tensor]:
        return self.query(x), self.key(context), self.value(context)

    def _joined(self, x: tf.Tensor) -> Sequence[tf.Tensor] | None:
        """Returns `[queries, keys, values]` from one matmul of `x`; `None` if that is impossible or slower."""
        layers = (self.query, self.key, self.value)
        if not in_xla() or any(type(layer) is not Linear or computes_by_parts(layer.w) for layer in layers):
            return None
        widths = [layer.w.shape[1] for layer in layers]
        if self.query.in_size * sum(widths) > _JOINED:
            return None
        check_last(self.query, x, self.query.in_size, "in_size")
        w = tf.concat([layer.w for layer in layers], 1)
        b = None if self.query.b is None else tf.concat([layer.b for layer in layers], 0)
        # Split as rows of a matrix: XLA then sums the bias's gradient along one axis instead of two, far quicker.
        rows, leading = merge_leading(x, 1)
        parts = tf.split(linear(rows, w, b), widths, 1)
        return [tf.reshape(y, [*leading, width]) for y, width in zip(parts, widths, strict=True)]

    def _by_head(self, made: Sequence[tf.Tensor], first: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Splits `made` into heads: [batch, time, heads, head_size]. `first` is the position of the first one."""
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = (tf.reshape(y, [*sizes(y)[:-1], n, self.head_size]) for y, n in zip(made, heads, strict=True))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.rotary_base is not None:
            positions = first + tf.range(tf.shape(q)[1])
            q, k = (rotary(y, positions, self.rotary_base, self.rotary_scaling) for y in (q, k))
        return q, k, v


def alibi_slopes(num_heads: int) -> list[float]:
    """Returns each head's slope in ALiBi: 2^(-8 / n), 2^(-16 / n), ... if `num_heads` n is a power of two.

    Otherwise the slopes of the next smaller power come first, then every other slope of twice that power, as in the
    paper's code.

    >>> alibi_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** (num_heads.bit_length() - 1)
    return [2 ** (-8 * (i + 1) / power) for i in range(power)] + [
        2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)
    ]


def _join(y: tf.Tensor) -> tf.Tensor:
    """Concatenates the heads of `y`: `[batch, time, heads, size]` to `[batch, time, heads * size]`."""
    batch, time, heads, size = sizes(y)
    return tf.reshape(y, [batch, time, heads * size])


def written(old: tf.Tensor, new: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """Returns `old` with `new` from position `first` on. XLA has no slices of unknown size, so this uses `tf.where`."""
    distance = tf.range(tf.shape(old)[1]) - first
    time = tf.shape(new)[1]
    inside = ((distance >= 0) & (distance < time))[:, tf.newaxis, tf.newaxis]
    return tf.where(inside, tf.gather(new, tf.clip_by_value(distance, 0, time - 1), axis=1), old)
