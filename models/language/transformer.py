"""A decoder-only transformer: predicts each token from earlier tokens (Vaswani et al., 2017; Radford et al., 2019)."""

import math
from collections.abc import Sequence

import tensorflow as tf

from core import initializers
from core.arguments import check_choice, check_size
from core.layers import Dropout, Embedding, LayerNorm, Linear, MultiHeadAttention, RMSNorm, gelu, recompute
from core.layers.attend import LONG
from core.layers.attention import Cache
from core.module import Module
from core.random import Rng
from core.tracing import computes_by_parts

STDDEV = 0.02  # of all matrices and tables, as in GPT-2
EPSILON = 1e-5
ROTARY_BASE = 10000.0


class FeedForward(Module):
    """`down(gelu(up(x)))` with tanh-approximated GELU, or SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer, 2020).

    By default, `hidden` is `4 * size`, with SwiGLU about `8 / 3 * size`. SwiGLU has a third matrix, so both have about
    as many parameters.
    """

    def __init__(
        self,
        size: int,
        *,
        kind: str,
        hidden: int | None,
        bias: bool,
        w_init: initializers.Initializer,
        out_init: initializers.Initializer,
        rng: Rng,
    ):
        super().__init__()
        check_choice("feed_forward", kind, ("gelu", "swiglu"))
        if hidden is None:
            hidden = 4 * size if kind == "gelu" else 8 * size // 3
        check_size(hidden=hidden)
        self.gate = None
        if kind == "swiglu":
            self.gate = Linear(size, hidden, rng=rng.fold("gate"), bias=bias, w_init=w_init)
        self.up = Linear(size, hidden, rng=rng.fold("up"), bias=bias, w_init=w_init)
        self.down = Linear(hidden, size, rng=rng.fold("down"), bias=bias, w_init=out_init)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        if self.gate is None:
            return self.down(gelu(self.up(x)))
        return self.down(tf.nn.silu(self.gate(x)) * self.up(x))


class Block(Module):
    """A transformer block: `x += attention(norm_1(x))`, then `x += feed_forward(norm_2(x))`."""

    def __init__(
        self,
        size: int,
        *,
        num_heads: int,
        num_kv_heads: int | None,
        hidden: int | None,
        positions: str,
        window: int | None,
        norm: str,
        feed_forward: str,
        bias: bool,
        dropout: float,
        w_init: initializers.Initializer,
        out_init: initializers.Initializer,
        rng: Rng,
    ):
        super().__init__()
        self.norm_1, self.norm_2 = make_norm(norm, size, bias=bias), make_norm(norm, size, bias=bias)
        self.attention = MultiHeadAttention(
            size,
            num_heads,
            rng=rng.fold("attention"),
            num_kv_heads=num_kv_heads,
            causal=True,
            window=window,
            rotary_base=ROTARY_BASE if positions == "rotary" else None,
            alibi=positions == "alibi",
            dropout_rate=dropout,
            bias=bias,
            w_init=w_init,
            out_init=out_init,
        )
        self.feed_forward = FeedForward(
            size,
            kind=feed_forward,
            hidden=hidden,
            bias=bias,
            w_init=w_init,
            out_init=out_init,
            rng=rng.fold("feed_forward"),
        )
        self.dropout = Dropout(dropout)

    def __call__(self, x: tf.Tensor, documents: tf.Tensor | None = None, rng: Rng | None = None) -> tf.Tensor:
        y = self.attention(self.norm_1(x), rng and rng.fold("weights"), documents=documents)
        x += self.dropout(y, rng and rng.fold("attention"))
        return x + self.dropout(self.feed_forward(self.norm_2(x)), rng and rng.fold("feed_forward"))

    def decode(self, x: tf.Tensor, cache: Cache) -> tuple[tf.Tensor, Cache]:
        """Returns the outputs for `x`, which continues the sequence in `cache`, and the cache extended with `x`."""
        y, cache = self.attention.decode(self.norm_1(x), cache)
        x += y
        return x + self.feed_forward(self.norm_2(x)), cache


class Transformer(Module):
    """Maps `tokens` [rows, time] to logits [rows, time, vocabulary] of each position's next token.

    The output layer reuses the embedding table (Press and Wolf, 2017). The last matrix of each residual branch starts
    with values divided by √(number of branches) (Radford et al., 2019). With `recompute`, only each block's input is
    stored for the gradient (Chen et al., 2016). With a `window`, each block attends to the last `window` tokens.

    With `base_width`, the network follows muP (see `core.optimizers.mup`): matrices of blocks are divided by
    √(size / base_width) at the start, and the output layer's inputs are multiplied by base_width / size.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        num_layers: int,
        size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        hidden: int | None = None,
        positions: str = "learned",
        window: int | None = None,
        norm: str = "layer",
        feed_forward: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
        recompute: bool = False,
        base_width: int | None = None,
        rng: Rng,
    ):
        super().__init__()
        check_size(vocabulary=vocabulary, context=context, num_layers=num_layers, size=size, num_heads=num_heads)
        check_choice("positions", positions, ("learned", "rotary", "alibi"))
        self.vocabulary, self.context, self.recompute = vocabulary, context, recompute
        self.out_scale = 1.0
        if base_width is not None:
            check_size(base_width=base_width)
            self.out_scale = base_width / size
        w_init, stddev = initializers.normal(STDDEV), STDDEV * math.sqrt(self.out_scale)
        self.tokens = Embedding(vocabulary, size, rng=rng.fold("tokens"), w_init=w_init)
        self.positions = None
        if positions == "learned":
            self.positions = Embedding(context, size, rng=rng.fold("positions"), w_init=w_init)
        self.blocks = [
            Block(
                size,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                hidden=hidden,
                positions=positions,
                window=window,
                norm=norm,
                feed_forward=feed_forward,
                bias=bias,
                dropout=dropout,
                w_init=initializers.normal(stddev),
                out_init=initializers.normal(stddev / math.sqrt(2 * num_layers)),
                rng=rng.fold(i),
            )
            for i in range(num_layers)
        ]
        self.norm = make_norm(norm, size, bias=bias)
        self.dropout = Dropout(dropout)

    def __call__(self, tokens: tf.Tensor, document: tf.Tensor | None = None, rng: Rng | None = None) -> tf.Tensor:
        """Returns logits; a token sees all earlier tokens, or only those with the same `document` id [rows, time].

        Positions count from the first token of each document, so logits don't depend on the document's place in a row.
        """
        if tokens.shape.rank != 2 or (tokens.shape[1] or 0) > self.context:
            raise ValueError(
                f"`tokens` has shape {tokens.shape}; give [rows, time], of at most `context={self.context}` tokens."
            )
        position = tf.expand_dims(tf.range(tf.shape(tokens)[1]), 0)
        if document is not None and self.positions is not None:
            position = positions_in(document, by_pairs=computes_by_parts(self.tokens.w))
        x = self.dropout(self._embed(tokens, position), rng and rng.fold("tokens"))
        for i, block in enumerate(self.blocks):
            run = recompute(block) if self.recompute else block
            x = run(x, document, rng and rng.fold(i))
        return self._logits(x)

    def empty_caches(self, rows: int | tf.Tensor, room: int) -> list[Cache]:
        """Returns one empty cache per block, with room for `room` positions."""
        return [block.attention.empty_cache(rows, room) for block in self.blocks]

    def decode(self, tokens: tf.Tensor, caches: Sequence[Cache]) -> tuple[tf.Tensor, list[Cache]]:
        """Returns logits [rows, vocabulary] of the token after `tokens`, and the caches extended with `tokens`.

        `tokens` [rows, time] continue the sequences in `caches` with one or more tokens.
        """
        x = self._embed(tokens, tf.expand_dims(caches[0].length + tf.range(tf.shape(tokens)[1]), 0))
        after = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block.decode(x, cache)
            after.append(cache)
        return self._logits(x[:, -1]), after

    def _logits(self, x: tf.Tensor) -> tf.Tensor:
        x = self.norm(x)
        return self.tokens.logits(x if self.out_scale == 1.0 else self.out_scale * x)

    def _embed(self, tokens: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        x = self.tokens(tokens)
        return x if self.positions is None else x + self.positions(position)


def positions_in(document: tf.Tensor, *, by_pairs: bool = False) -> tf.Tensor:
    """Returns for each token how many earlier tokens have the same `document` id: int32 [rows, time]."""
    place = tf.range(tf.shape(document)[1])
    if by_pairs or (document.shape[1] or 0) <= LONG:
        mask = tf.expand_dims(document, 2) == tf.expand_dims(document, 1)
        earlier = mask & (tf.expand_dims(place, 1) > tf.expand_dims(place, 0))
        return tf.reduce_sum(tf.cast(earlier, tf.int32), -1)
    # A longer row is sorted by document, which takes no memory for pairs of tokens. A mesh can't lay that out.
    order = tf.argsort(document, stable=True)
    inside = tf.gather(document, order, batch_dims=1)
    position = place - tf.searchsorted(inside, inside)  # the distance from the first token of the document
    return tf.gather(position, tf.argsort(order), batch_dims=1)


def make_norm(kind: str, size: int, *, bias: bool) -> Module:
    """Makes a norm: `kind` is "layer" (with an offset if `bias`) or "rms"."""
    check_choice("norm", kind, ("layer", "rms"))
    return LayerNorm(size, epsilon=EPSILON, offset=bias) if kind == "layer" else RMSNorm(size, epsilon=EPSILON)
