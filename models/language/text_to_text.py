"""The task of a T5: writing the target that belongs to a source (Raffel et al., 2020)."""

import dataclasses
from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core import losses, metrics
from core.arguments import check_size
from core.data import Examples
from core.errors import DataError
from core.layers.attention import Cache
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Loss, Phase, Served, Task, Update
from models.language.sampling import Decoder, greedy
from models.language.t5 import T5, DecoderCache, T5Config


@gin.configurable
class TextToText(Task):
    """Writes the `target` of each `source`, both rows of tokens. Tokens below 1 are padding.

    A target's tokens are predicted from the source and the tokens before them; the decoder's first input is 0. `exact`
    is the share of targets in which each token is the most probable one: greedy decoding writes exactly these. For
    T5 1.1, set `feed_forward="geglu"` and `tied=False`. `decoder` (by default `greedy()`) writes answers of at most
    `answer_length` tokens.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        vocabulary: int = gin.REQUIRED,
        num_layers: int = gin.REQUIRED,
        size: int = gin.REQUIRED,
        num_heads: int = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        num_decoder_layers: int | None = None,
        head_size: int | None = None,
        hidden: int | None = None,
        buckets: int = 32,
        farthest: int = 128,
        feed_forward: str = "relu",
        tied: bool = True,
        epsilon: float = 1e-6,
        dropout: float = 0.1,
        decoder: Decoder | None = None,
        answer_length: int = 64,
    ):
        super().__init__()
        config = T5Config(
            vocabulary=vocabulary,
            num_layers=num_layers,
            num_decoder_layers=num_decoder_layers,
            size=size,
            num_heads=num_heads,
            head_size=head_size,
            hidden=hidden,
            buckets=buckets,
            farthest=farthest,
            feed_forward=feed_forward,
            tied=tied,
            epsilon=epsilon,
            dropout=dropout,
        )
        check_size(answer_length=answer_length)
        self.optimizer, self.decoder, self.answer_length = optimizer, decoder or greedy(), answer_length
        self.net = T5(config, rng=rng.fold("net"))

    def phases(self) -> list[Phase]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns the cross-entropy of each token of the target. `rng=None` means evaluation."""
        logits, target = self._logits(batch, rng), tf.maximum(batch["target"], 0)
        cross_entropy = losses.softmax_cross_entropy(logits, target)
        accuracy, counts = metrics.accuracy(logits, target), target > 0
        right = tf.reduce_all((accuracy > 0) | ~counts, -1)
        figures = {
            "accuracy": accuracy,
            "exact": metrics.Mean.of(tf.cast(right, tf.float32), tf.reduce_any(counts, -1)),
        }
        return Loss(cross_entropy, weight=tf.cast(counts, tf.float32), metrics=figures)

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def _logits(self, batch: Batch, rng: Rng | None = None) -> tf.Tensor:
        source, target = (tf.maximum(batch[name], 0) for name in ("source", "target"))
        inputs = tf.pad(target[:, :-1], [[0, 0], [1, 0]])
        return self.net(source, inputs, rng, seen=source > 0)

    def answer(self, rng: Rng, prompts: tf.Tensor, lengths: tf.Tensor, *, end: int, vocabulary: int) -> tf.Tensor:
        """Returns answers [rows, answer_length] to the first `lengths[row]` tokens of `prompts` [rows, time].

        `end` is added to each prompt. All tokens are below `vocabulary`. An answer is filled with `end`.
        """
        place, lengths = tf.range(prompts.shape[1] + 1), lengths[:, tf.newaxis]
        source = tf.where(place < lengths, tf.pad(prompts, [[0, 0], [0, 1]]), tf.where(place == lengths, end, 0))
        return self._answers(source, rng, end=end, vocabulary=vocabulary)

    def _answers(self, source: tf.Tensor, rng: Rng, *, end: int, vocabulary: int) -> tf.Tensor:
        writer = self.net.writer(tf.maximum(source, 0), seen=source > 0)
        first, ones = tf.zeros_like(source[:, :1]), tf.ones_like(source[:, 0])
        length = self.answer_length + 1
        return self.decoder(writer, first, ones, length=length, end=end, vocabulary=vocabulary, rng=rng)[:, 1:]

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        tokens = tf.TensorSpec([None, None], tf.int32)
        seen, state = tf.TensorSpec([None, None], tf.bool), self._state_specs()
        return {
            "predict": Served(self.predict, {"source": tokens, "target": tokens}, scores=["logits"]),
            "encode": Served(self.encode, {"source": tokens}),
            "decode": Served(
                self.decode, {"tokens": tokens, "seen": seen, **state}, examples=self._begun, scores=["logits"]
            ),
        }

    def predict(self, batch: Batch) -> Batch:
        """Returns the `logits` of each token of the target, from the source and the tokens before it."""
        return {"logits": self._logits(batch)}

    def encode(self, batch: Batch) -> Batch:
        """Returns the tensors of which `decode` writes an answer to `batch["source"]`, at most `answer_length` long."""
        source = tf.maximum(batch["source"], 0)
        seen = source > 0
        caches = self.net.writer(source, seen=seen).empty_caches(tf.shape(source)[0], self.answer_length)
        return {"seen": seen, **_state(caches)}

    def decode(self, batch: Batch) -> Batch:
        """Returns the `logits` of the token after `batch["tokens"]`, and the tensors that have changed with it.

        The first token is 0. The other tensors are those of `encode`, and of the last call those that it returned.
        """
        logits, caches = self.net.continued(batch["tokens"], _caches(batch))
        state = _state(caches)
        return {"logits": logits, **{name: state[name] for name in ("keys", "values", "position")}}

    def _state_specs(self) -> dict[str, tf.TensorSpec]:
        attention, layers = self.net.decoder.blocks[0].attention, len(self.net.decoder.blocks)
        lengths, heads = [self.answer_length] * 2 + [None] * 2, [attention.num_heads, attention.head_size]
        specs = [tf.TensorSpec([None, layers, length, *heads]) for length in lengths]
        return {**dict(zip(_STATE, specs, strict=True)), "position": tf.TensorSpec([], tf.int32)}

    def _begun(self, batch: Batch) -> Batch:
        return {**self.encode(batch), "tokens": tf.zeros_like(batch["source"][:, :1])}

    def reads(self) -> dict[str, Feature]:
        feature = PaddedTokens(self.net.config.vocabulary)
        return {"source": feature, "target": feature}


_STATE = ("keys", "values", "source_keys", "source_values")


def _state(caches: Sequence[DecoderCache]) -> Batch:
    """Returns the caches of all blocks as a few tensors [rows, layers, time, heads, head_size], for an export."""
    blocks = [(*_past(cache)[:2], cache.keys, cache.values) for cache in caches]
    stacked = [tf.stack(parts, 1) for parts in zip(*blocks, strict=True)]
    return {**dict(zip(_STATE, stacked, strict=True)), "position": _past(caches[0]).length}


def _past(cache: DecoderCache) -> Cache:
    assert cache.past is not None
    return cache.past


def _caches(batch: Batch) -> list[DecoderCache]:
    blocks = zip(*(tf.unstack(batch[name], axis=1) for name in _STATE), strict=True)
    return [
        DecoderCache(Cache(k, v, batch["position"]), source_k, source_v, batch["seen"])
        for k, v, source_k, source_v in blocks
    ]


@dataclasses.dataclass(frozen=True)
class PaddedTokens:
    """A row of tokens below `vocabulary`, int32, in which tokens below 1 are padding."""

    vocabulary: int

    def check(self, source: Examples, feature: str, *, task: str) -> None:
        """Raises a `DataError` if `feature` is no row of tokens, or has some outside `vocabulary`."""
        spec, named = source.spec[feature], f"`{feature}` of source `{source.name}`"
        if spec.dtype != tf.int32 or spec.shape.rank != 1:
            raise DataError(
                f"{named} is {spec.dtype.name} of shape {spec.shape}, but `{task}` reads rows of tokens, int32 [time]: "
                "give a source of such rows, padded with 0."
            )
        extremes = source.extremes(feature)
        if extremes and extremes[2] >= self.vocabulary:
            raise DataError(
                f"`{feature}` of example {extremes[3]} of source `{source.name}` is {extremes[2]}, but "
                f"`{task}.vocabulary` is {self.vocabulary}: tokens are 1 to {self.vocabulary - 1}; set it to the "
                "vocabulary's size."
            )
