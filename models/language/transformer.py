"""A decoder-only transformer: predicts each token from earlier tokens (Vaswani et al., 2017; Radford et al., 2019)."""

import math
from collections.abc import Sequence

import tensorflow as tf

from core import initializers
from core.initializers import Initializer
from core.layers import Dropout, Embedding, LayerNorm, Linear, MultiHeadAttention, RMSNorm, gelu, recompute
from core.layers.attend import LONG
from core.layers.attention import Cache
from core.module import Module
from core.random import Rng
from core.task.statistics import Statistics
from core.tracing import computes_by_parts
from models.language.config import TransformerConfig
from models.language.experts import Experts

STDDEV = 0.02  # of all matrices and tables, as in GPT-2


class FeedForward(Module):
    """`down(gelu(up(x)))` with tanh-approximated GELU, or SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer, 2020)."""

    def __init__(self, config: TransformerConfig, *, rng: Rng):
        super().__init__()
        size, hidden, bias = config.size, config.hidden_size, config.bias
        w_init, out_init = initial_weights(config)
        self.gate = None
        if config.feed_forward == "swiglu":
            self.gate = Linear(size, hidden, rng=rng.fold("gate"), bias=bias, w_init=w_init)
        self.up = Linear(size, hidden, rng=rng.fold("up"), bias=bias, w_init=w_init)
        self.down = Linear(hidden, size, rng=rng.fold("down"), bias=bias, w_init=out_init)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        if self.gate is None:
            return self.down(gelu(self.up(x)))
        return self.down(tf.nn.silu(self.gate(x)) * self.up(x))


class Block(Module):
    """A transformer block: `x += attention(norm_1(x))`, then `x += feed_forward(norm_2(x))`."""

    def __init__(self, config: TransformerConfig, *, rng: Rng):
        super().__init__()
        w_init, out_init = initial_weights(config)
        self.norm_1, self.norm_2 = make_norm(config), make_norm(config)
        self.attention = MultiHeadAttention(
            config.size,
            config.num_heads,
            rng=rng.fold("attention"),
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            causal=True,
            window=config.window,
            rotary_base=config.rotary_base if config.positions == "rotary" else None,
            rotary_scaling=config.rotary_scaling,
            alibi=config.positions == "alibi",
            qk_epsilon=config.epsilon if config.qk_norm else None,
            score_cap=config.score_cap,
            dropout_rate=config.dropout,
            bias=config.bias,
            qkv_bias=config.qkv_bias,
            w_init=w_init,
            out_init=out_init,
        )
        self.feed_forward: FeedForward | Experts
        if config.experts is None:
            self.feed_forward = FeedForward(config, rng=rng.fold("feed_forward"))
        else:
            self.feed_forward = Experts(config, rng=rng.fold("feed_forward"), w_init=w_init, out_init=out_init)
        self.dropout = Dropout(config.dropout)

    def __call__(
        self,
        x: tf.Tensor,
        documents: tf.Tensor | None = None,
        rng: Rng | None = None,
        *,
        statistics: Statistics | None = None,
    ) -> tf.Tensor:
        y = self.attention(self.norm_1(x), rng and rng.fold("weights"), documents=documents)
        x += self.dropout(y, rng and rng.fold("attention"))
        y = self.norm_2(x)
        if isinstance(self.feed_forward, Experts):
            y = self.feed_forward(y, None if documents is None else documents >= 0, statistics)
        else:
            y = self.feed_forward(y)
        return x + self.dropout(y, rng and rng.fold("feed_forward"))

    def decode(self, x: tf.Tensor, cache: Cache) -> tuple[tf.Tensor, Cache]:
        """Returns the outputs for `x`, which continues the sequence in `cache`, and the cache extended with `x`."""
        y, cache = self.attention.decode(self.norm_1(x), cache)
        x += y
        return x + self.feed_forward(self.norm_2(x)), cache


class Transformer(Module):
    """Maps `tokens` [rows, time] to logits [rows, time, vocabulary] of each position's next token.

    A tied output layer reuses the embedding table (Press and Wolf, 2017). The last matrix of each residual branch
    starts with values divided by √(number of branches) (Radford et al., 2019).
    """

    def __init__(self, config: TransformerConfig, *, rng: Rng):
        super().__init__()
        self.config = config
        w_init = initializers.normal(STDDEV)
        self.tokens = Embedding(config.vocabulary, config.size, rng=rng.fold("tokens"), w_init=w_init)
        self.positions = None
        if config.positions == "learned":
            self.positions = Embedding(config.context, config.size, rng=rng.fold("positions"), w_init=w_init)
        self.blocks = [Block(config, rng=rng.fold(i)) for i in range(config.num_layers)]
        self.norm = make_norm(config)
        self.logits = None
        if not config.tied:
            self.logits = Linear(config.size, config.vocabulary, rng=rng.fold("logits"), bias=False, w_init=w_init)
        self.dropout = Dropout(config.dropout)

    def __call__(
        self,
        tokens: tf.Tensor,
        document: tf.Tensor | None = None,
        rng: Rng | None = None,
        *,
        statistics: Statistics | None = None,
    ) -> tf.Tensor:
        """Returns logits; a token sees all earlier tokens, or only those with the same `document` id [rows, time].

        Positions count from the first token of each document, so logits don't depend on the document's place in a row.
        `statistics` get the load of each block's `Experts`.
        """
        context = self.config.context
        if tokens.shape.rank != 2 or (tokens.shape[1] or 0) > context:
            raise ValueError(
                f"`tokens` has shape {tokens.shape}; give [rows, time], of at most `context={context}` tokens."
            )
        position = tf.expand_dims(tf.range(tf.shape(tokens)[1]), 0)
        if document is not None and self.positions is not None:
            position = positions_in(document, by_pairs=computes_by_parts(self.tokens.w))
        x = self.dropout(self._embed(tokens, position), rng and rng.fold("tokens"))
        for i, block in enumerate(self.blocks):
            run = recompute(block) if self.config.recompute else block
            x = run(x, document, rng and rng.fold(i), statistics=statistics)
        return self._logits(x)

    @property
    def most_positions(self) -> int | None:
        return None if self.positions is None else self.config.context

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
        x, scale, cap = self.norm(x), self.config.width_scale, self.config.logit_cap
        x = x if scale == 1.0 else scale * x
        logits = self.tokens.logits(x) if self.logits is None else self.logits(x)
        return logits if cap is None else cap * tf.tanh(logits / cap)

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


def make_norm(config: TransformerConfig) -> Module:
    """Makes the norm of a configuration."""
    if config.norm == "rms":
        return RMSNorm(config.size, epsilon=config.epsilon)
    return LayerNorm(config.size, epsilon=config.epsilon, offset=config.bias)


def initial_weights(config: TransformerConfig) -> tuple[Initializer, Initializer]:
    """Returns the initial weights of a block's matrices, and those of the last one in each residual branch."""
    stddev = STDDEV * math.sqrt(config.width_scale)
    return initializers.normal(stddev), initializers.normal(stddev / math.sqrt(2 * config.num_layers))
