"""BERT (Devlin et al., 2019): a transformer encoder that sees both sides of each token."""

import dataclasses
from typing import Any

import tensorflow as tf

from core import initializers
from core.arguments import check_fraction, check_positive, check_size
from core.initializers import Initializer
from core.layers import Dropout, Embedding, LayerNorm, Linear, MultiHeadAttention
from core.layers.shapes import add_bias, widen
from core.module import Module
from core.random import Rng
from core.tracing import computes_by_parts
from models.language.transformer import positions_in


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a `Bert`. The defaults are those of the paper's base model, with 110 million parameters."""

    vocabulary: int = 30522
    context: int = 512
    num_layers: int = 12
    size: int = 768
    num_heads: int = 12
    hidden: int | None = None  # 4 * size
    types: int = 2  # of segments: the first and the second sentence
    epsilon: float = 1e-12
    dropout: float = 0.1

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "context", "num_layers", "size", "num_heads", "types")
        check_size(hidden=self.settings()["hidden"], **{name: getattr(self, name) for name in sizes})
        check_positive(epsilon=self.epsilon)
        check_fraction(dropout=self.dropout)

    def settings(self) -> dict[str, Any]:
        """Returns all settings by name, with the values that defaults stand for."""
        return {**vars(self), "hidden": 4 * self.size if self.hidden is None else self.hidden}


class EncoderBlock(Module):
    """A block that normalises after each sum: `norm_1(x + attention(x))`, then `norm_2(x + down(gelu(up(x))))`."""

    def __init__(self, config: BertConfig, *, rng: Rng, w_init: Initializer):
        super().__init__()
        size, hidden, rate = config.size, config.settings()["hidden"], config.dropout
        self.attention = MultiHeadAttention(
            size, config.num_heads, rng=rng.fold("attention"), dropout_rate=rate, w_init=w_init
        )
        self.up = Linear(size, hidden, rng=rng.fold("up"), w_init=w_init)
        self.down = Linear(hidden, size, rng=rng.fold("down"), w_init=w_init)
        self.norm_1, self.norm_2 = (LayerNorm(size, epsilon=config.epsilon) for _ in range(2))
        self.dropout = Dropout(rate)

    def __call__(self, x: tf.Tensor, documents: tf.Tensor | None = None, rng: Rng | None = None) -> tf.Tensor:
        y = self.attention(x, rng and rng.fold("weights"), documents=documents)
        x = self.norm_1(x + self.dropout(y, rng and rng.fold("attention")))
        y = self.down(exact_gelu(self.up(x)))
        return self.norm_2(x + self.dropout(y, rng and rng.fold("feed_forward")))


class Bert(Module):
    """Maps `tokens` [rows, time] to logits [rows, time, vocabulary] of each position's own token.

    The output layer transforms each position once more, and reuses the embedding table.
    """

    def __init__(self, config: BertConfig, *, rng: Rng):
        super().__init__()
        self.config = config
        w_init = initializers.truncated_normal(0.02)

        def table(name: str, rows: int) -> Embedding:
            return Embedding(rows, config.size, rng=rng.fold(name), w_init=w_init)

        self.tokens, self.positions = table("tokens", config.vocabulary), table("positions", config.context)
        self.types = table("types", config.types)
        self.norm = LayerNorm(config.size, epsilon=config.epsilon)
        self.blocks = [EncoderBlock(config, rng=rng.fold(i), w_init=w_init) for i in range(config.num_layers)]
        self.transform = Linear(config.size, config.size, rng=rng.fold("transform"), w_init=w_init)
        self.transform_norm = LayerNorm(config.size, epsilon=config.epsilon)
        self.b = tf.Variable(tf.zeros([config.vocabulary]), name="b")
        self.dropout = Dropout(config.dropout)

    def __call__(
        self,
        tokens: tf.Tensor,
        document: tf.Tensor | None = None,
        rng: Rng | None = None,
        *,
        types: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns logits. `document` and `types` are those of `encode`."""
        x = self.encode(tokens, document, rng, types=types)
        x = self.transform_norm(exact_gelu(self.transform(x)))
        return add_bias(self.tokens.logits(x), self.b)

    def encode(
        self,
        tokens: tf.Tensor,
        document: tf.Tensor | None = None,
        rng: Rng | None = None,
        *,
        types: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the last block's outputs [rows, time, size].

        A token sees the tokens with the same `document` id [rows, time]; padding has -1. Positions count from the first
        token of each document. `types` [rows, time] number the segments, by default all 0.
        """
        if tokens.shape.rank != 2 or (tokens.shape[1] or 0) > self.config.context:
            raise ValueError(
                f"`tokens` has shape {tokens.shape}; give [rows, time], of at most `context={self.config.context}`."
            )
        position = tf.expand_dims(tf.range(tf.shape(tokens)[1]), 0)
        if document is not None:
            position = positions_in(document, by_pairs=computes_by_parts(self.tokens.w))
        x = self.tokens(tokens) + self.positions(position)
        x += self.types(tf.zeros_like(tokens) if types is None else types)
        x = self.dropout(self.norm(x), rng and rng.fold("tokens"))
        for i, block in enumerate(self.blocks):
            x = block(x, document, rng and rng.fold(i))
        return x


def exact_gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns x · Φ(x) without `gelu`'s approximation, as BERT does."""
    return tf.cast(tf.nn.gelu(widen(x), approximate=False), x.dtype)
