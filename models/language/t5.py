"""T5 (Raffel et al., 2020): an encoder reads a source text, and a decoder writes the target."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core import initializers
from core.arguments import check_choice, check_fraction, check_groups, check_positive, check_size
from core.casts import cast_to
from core.layers import Dropout, Embedding, Linear, RMSNorm, gelu
from core.layers.attend import LONG, attend
from core.layers.attention import Cache, written
from core.layers.products import product
from core.layers.shapes import sizes
from core.module import Module
from core.precision import compute_dtype
from core.random import Rng
from core.tracing import computes_by_parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config:
    """Sizes of a `T5`. The defaults are those of the paper's small model, with 60 million parameters."""

    vocabulary: int = 32128
    num_layers: int = 6  # of the encoder
    num_decoder_layers: int | None = None  # num_layers
    size: int = 512
    num_heads: int = 8
    head_size: int | None = None  # size / num_heads
    hidden: int | None = None  # 4 * size
    buckets: int = 32  # of distances
    farthest: int = 128  # distance; larger ones are in the same bucket
    feed_forward: str = "relu"  # or "geglu", as in T5 1.1
    tied: bool = True
    epsilon: float = 1e-6
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_size(size=self.size, num_heads=self.num_heads)
        if self.head_size is None:
            check_groups("num_heads", self.num_heads, size=self.size)
        names = ("vocabulary", "num_layers", "num_decoder_layers", "head_size", "hidden", "buckets", "farthest")
        check_size(**{name: self.settings()[name] for name in names})
        if self.buckets < 4 or self.buckets % 2:
            raise ValueError(f"`buckets` is {self.buckets}, of which each direction has half: give 4, 6, 8 or more.")
        if self.farthest <= self.buckets // 2:
            raise ValueError(
                f"`farthest` is {self.farthest}, but {self.buckets // 2} distances have a bucket each: give more."
            )
        check_choice("feed_forward", self.feed_forward, ["relu", "geglu"])
        check_positive(epsilon=self.epsilon)
        check_fraction(dropout=self.dropout)

    def settings(self) -> dict[str, Any]:
        """Returns all settings by name, with the values that defaults stand for."""
        defaults = {
            "num_decoder_layers": self.num_layers,
            "head_size": self.size // self.num_heads,
            "hidden": 4 * self.size,
        }
        return {name: defaults[name] if value is None else value for name, value in vars(self).items()}


class Positions(Module):
    """A learned score for each head and bucket of distances, which all blocks of a stack add to their scores."""

    def __init__(self, config: T5Config, *, causal: bool, rng: Rng):
        super().__init__()
        self.buckets, self.farthest, self.causal = config.buckets, config.farthest, causal
        init = initializers.normal(config.size**-0.5)
        self.table = tf.Variable(init(rng.fold("table"), [config.buckets, config.num_heads]), name="table")

    def __call__(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Returns scores [1, heads, queries, keys] for positions `queries` and `keys`."""
        distance = keys - queries[:, tf.newaxis]
        bucket = tf.gather(bucket_by_distance(self.buckets, self.farthest, causal=self.causal), self._row(distance))
        # A matrix product, since the gradient of a lookup adds up in another order each time on a GPU.
        chosen = tf.one_hot(tf.reshape(bucket, [-1]), self.buckets, dtype=compute_dtype())
        scores = product(cast_to(self.table, chosen.dtype), chosen, transpose_a=True, transpose_b=True)
        return tf.reshape(scores, [1, self.table.shape[1], *sizes(distance)])

    def _row(self, distance: tf.Tensor) -> tf.Tensor:
        return self.farthest + tf.clip_by_value(distance, -self.farthest, self.farthest)


def bucket_by_distance(buckets: int, farthest: int, *, causal: bool) -> np.ndarray[Any, Any]:
    """Returns the bucket of each distance from `-farthest` to `farthest`, where a key after its query has a positive.

    Small distances have a bucket each. Buckets of larger distances are equally wide in the logarithm. Without `causal`,
    half of the buckets are for keys after their query; with `causal`, these keys share bucket 0.

    >>> bucket_by_distance(8, 12, causal=False).tolist()
    [3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 1, 0, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7]
    """
    distance = np.arange(-farthest, farthest + 1)
    each = buckets if causal else buckets // 2
    after = np.where(distance > 0, each, 0)
    far = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = each // 2
    # In float32, which trained models were computed in: a bucket's first distance may depend on rounding.
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(farthest / exact))
    wide = np.minimum(exact + (ratio * np.float32(each - exact)).astype(np.int32), each - 1)
    bucket = np.where(far < exact, far, wide)
    return (bucket if causal else bucket + after).astype(np.int32)


class Attention(Module):
    """Multi-head attention without biases. Its scores aren't divided by √(head size): initial queries are smaller."""

    def __init__(self, config: T5Config, *, rng: Rng):
        super().__init__()
        found = config.settings()
        self.num_heads, self.head_size, self.dropout = config.num_heads, found["head_size"], config.dropout
        width = self.num_heads * self.head_size

        def projection(name: str, inputs: int, outputs: int, stddev: float) -> Linear:
            return Linear(inputs, outputs, rng=rng.fold(name), bias=False, w_init=initializers.normal(stddev))

        self.query = projection("query", config.size, width, (config.size * self.head_size) ** -0.5)
        self.key = projection("key", config.size, width, config.size**-0.5)
        self.value = projection("value", config.size, width, config.size**-0.5)
        self.out = projection("out", width, config.size, width**-0.5)

    def __call__(
        self, x: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, rng: Rng | None = None, **options: Any
    ) -> tf.Tensor:
        """Attends from `x` [rows, time, size] to `keys` and `values`, with further `options` of `attend`."""
        q = self._by_head(self.query(x)) * tf.cast(math.sqrt(self.head_size), x.dtype)  # `attend` divides by it
        # DTensor can't lay out the lists of tensors that loops over tiles fill.
        chunk_size = None if computes_by_parts(self.query.w) else LONG
        y = attend(q, keys, values, dropout_rate=self.dropout, rng=rng, chunk_size=chunk_size, **options)
        return self.out(tf.reshape(y, [*sizes(y)[:2], self.num_heads * self.head_size]))

    def keys_and_values(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns keys and values [rows, time, heads, head size] of `x`."""
        return self._by_head(self.key(x)), self._by_head(self.value(x))

    def _by_head(self, y: tf.Tensor) -> tf.Tensor:
        return tf.reshape(y, [*sizes(y)[:2], self.num_heads, self.head_size])


class FeedForward(Module):
    """`down(relu(up(x)))`, or `down(gelu(gate(x)) * up(x))` in T5 1.1 (Shazeer, 2020)."""

    def __init__(self, config: T5Config, *, rng: Rng):
        super().__init__()
        size, hidden = config.size, config.settings()["hidden"]

        def projection(name: str, inputs: int, outputs: int) -> Linear:
            return Linear(inputs, outputs, rng=rng.fold(name), bias=False, w_init=initializers.normal(inputs**-0.5))

        self.gate = projection("gate", size, hidden) if config.feed_forward == "geglu" else None
        self.up, self.down = projection("up", size, hidden), projection("down", hidden, size)
        self.dropout = Dropout(config.dropout)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        y = tf.nn.relu(self.up(x)) if self.gate is None else gelu(self.gate(x)) * self.up(x)
        return self.down(self.dropout(y, rng))


class Block(Module):
    """A block: `x += attention(norm_1(x))`, in a decoder `x += cross(norm_2(x))`, `x += feed_forward(norm_3(x))`."""

    def __init__(self, config: T5Config, *, decodes: bool, rng: Rng):
        super().__init__()
        self.norm_1, self.norm_3 = (RMSNorm(config.size, epsilon=config.epsilon) for _ in range(2))
        self.attention = Attention(config, rng=rng.fold("attention"))
        self.norm_2 = RMSNorm(config.size, epsilon=config.epsilon) if decodes else None
        self.cross = Attention(config, rng=rng.fold("cross")) if decodes else None
        self.feed_forward = FeedForward(config, rng=rng.fold("feed_forward"))
        self.dropout = Dropout(config.dropout)

    def encode(self, x: tf.Tensor, bias: tf.Tensor, seen: tf.Tensor | None, rng: Rng | None) -> tf.Tensor:
        y = self.norm_1(x)
        y = self.attention(y, *self.attention.keys_and_values(y), rng and rng.fold("weights"), bias=bias, mask=seen)
        return self._fed_forward(x + self.dropout(y, rng and rng.fold("attention")), rng)

    def decode(
        self, x: tf.Tensor, cache: "DecoderCache", bias: tf.Tensor, rng: Rng | None = None
    ) -> tuple[tf.Tensor, "DecoderCache"]:
        """Returns the outputs for `x`, which continues the text in `cache`, and the cache extended with `x`."""
        assert self.cross is not None
        assert self.norm_2 is not None
        y, past, first = self.norm_1(x), cache.past, 0
        keys, values = self.attention.keys_and_values(y)
        if past is not None:
            first = past.length
            keys, values = written(past.keys, keys, first), written(past.values, values, first)
            past = Cache(keys, values, first + sizes(x)[1])
        options = {"bias": bias, "causal": True, "first_query": first}
        y = self.attention(y, keys, values, rng and rng.fold("weights"), **options)
        x += self.dropout(y, rng and rng.fold("attention"))
        y = self.cross(self.norm_2(x), cache.keys, cache.values, rng and rng.fold("cross_weights"), mask=cache.seen)
        x += self.dropout(y, rng and rng.fold("cross"))
        return self._fed_forward(x, rng), cache._replace(past=past)

    def _fed_forward(self, x: tf.Tensor, rng: Rng | None) -> tf.Tensor:
        y = self.feed_forward(self.norm_3(x), rng and rng.fold("hidden"))
        return x + self.dropout(y, rng and rng.fold("feed_forward"))


class DecoderCache(NamedTuple):
    """The inputs of a decoder's block: its earlier positions, and keys and values of the source."""

    past: Cache | None  # None if the block gets the whole text at once
    keys: tf.Tensor  # [rows, source time, heads, head_size]
    values: tf.Tensor
    seen: tf.Tensor | None  # [rows, source time]; None if there is no padding


class Stack(Module):
    """The blocks of the encoder or decoder, which share their positions, and the norm after them."""

    def __init__(self, config: T5Config, num_layers: int, *, decodes: bool, rng: Rng):
        super().__init__()
        self.positions = Positions(config, causal=decodes, rng=rng.fold("positions"))
        self.blocks = [Block(config, decodes=decodes, rng=rng.fold(i)) for i in range(num_layers)]
        self.norm = RMSNorm(config.size, epsilon=config.epsilon)


class T5(Module):
    """Maps a `source` and decoder's `inputs` to logits [rows, time, vocabulary] of the token after each input.

    A tied output layer reuses the embedding table, after dividing by √size.
    """

    def __init__(self, config: T5Config, *, rng: Rng):
        super().__init__()
        self.config = config
        size, vocabulary = config.size, config.vocabulary
        self.tokens = Embedding(vocabulary, size, rng=rng.fold("tokens"), w_init=initializers.normal(1.0))
        self.encoder = Stack(config, config.num_layers, decodes=False, rng=rng.fold("encoder"))
        layers = config.settings()["num_decoder_layers"]
        self.decoder = Stack(config, layers, decodes=True, rng=rng.fold("decoder"))
        self.logits = None
        if not config.tied:
            w_init = initializers.normal(size**-0.5)
            self.logits = Linear(size, vocabulary, rng=rng.fold("logits"), bias=False, w_init=w_init)
        self.dropout = Dropout(config.dropout)

    def __call__(
        self, source: tf.Tensor, inputs: tf.Tensor, rng: Rng | None = None, *, seen: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns logits for `source` [rows, source time] and `inputs` [rows, time], the target's tokens shifted.

        `seen` [rows, source time] is false for padding. An input sees itself and earlier ones.
        """
        encoded = self.encode(source, rng and rng.fold("encoder"), seen=seen)
        rng = rng and rng.fold("decoder")
        x = self.dropout(self.tokens(inputs), rng and rng.fold("tokens"))
        place = tf.range(tf.shape(inputs)[1])
        bias = self.decoder.positions(place, place)
        for i, (block, source_part) in enumerate(zip(self.decoder.blocks, self._sources(encoded), strict=True)):
            x, _ = block.decode(x, DecoderCache(None, *source_part, seen), bias, rng and rng.fold(i))
        return self._logits(x, rng)

    def encode(self, source: tf.Tensor, rng: Rng | None = None, *, seen: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the encoder's outputs [rows, source time, size]."""
        x = self.dropout(self.tokens(source), rng and rng.fold("tokens"))
        place = tf.range(tf.shape(source)[1])
        bias = self.encoder.positions(place, place)
        for i, block in enumerate(self.encoder.blocks):
            x = block.encode(x, bias, seen, rng and rng.fold(i))
        return self.dropout(self.encoder.norm(x), rng and rng.fold("norm"))

    def writer(self, source: tf.Tensor, *, seen: tf.Tensor | None = None) -> "Writer":
        """Returns the decoder for this `source`, as `sampling` takes it."""
        seen = tf.ones_like(source, tf.bool) if seen is None else seen
        return Writer(self, self._sources(self.encode(source, seen=seen)), seen)

    def continued(self, tokens: tf.Tensor, caches: Sequence[DecoderCache]) -> tuple[tf.Tensor, list[DecoderCache]]:
        """Returns logits [rows, vocabulary] of the token after `tokens` [rows, time], and the caches after them.

        `caches` hold the source, and the tokens of the answer before these.
        """
        past, after = caches[0].past, []
        assert past is not None
        place = past.length + tf.range(tf.shape(tokens)[1])
        bias = self.decoder.positions(place, tf.range(tf.shape(past.keys)[1]))
        x = self.tokens(tokens)
        for block, cache in zip(self.decoder.blocks, caches, strict=True):
            x, cache = block.decode(x, cache, bias)
            after.append(cache)
        return self._logits(x[:, -1]), after

    def _sources(self, encoded: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns keys and values of the encoder's outputs for each block of the decoder."""
        return [block.cross.keys_and_values(encoded) for block in self.decoder.blocks if block.cross is not None]

    def _logits(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        x = self.dropout(self.decoder.norm(x), rng and rng.fold("norm"))
        if self.logits is not None:
            return self.logits(x)
        return self.tokens.logits(x * tf.cast(self.config.size**-0.5, x.dtype))


class Writer:
    """The decoder of a `T5` with a source: a `sampling.Network`."""

    most_positions = None

    def __init__(self, net: T5, sources: Sequence[tuple[tf.Tensor, tf.Tensor]], seen: tf.Tensor):
        self._net, self._sources, self._seen = net, sources, seen

    def empty_caches(self, rows: int | tf.Tensor, room: int) -> list[DecoderCache]:
        """Returns the caches of `rows` texts, as many as there are sources."""
        _, _, heads, head_size = self._sources[0][0].shape
        zeros = tf.zeros([rows, room, heads, head_size], compute_dtype())
        empty = Cache(zeros, zeros, tf.constant(0))
        return [DecoderCache(empty, *source, self._seen) for source in self._sources]

    def decode(self, tokens: tf.Tensor, caches: Sequence[DecoderCache]) -> tuple[tf.Tensor, list[DecoderCache]]:
        """Returns logits [rows, vocabulary] of the token after `tokens` [rows, time], and the caches after them."""
        return self._net.continued(tokens, caches)
