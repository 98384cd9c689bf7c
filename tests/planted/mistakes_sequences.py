"""Mistakes with sequences: causality, padding, masks, sums over tokens."""

import tensorflow as tf

from core import layers, losses
from core.task import Loss
from tests.planted import steps
from tests.planted.steps import LENGTHS, RNG, SIZE, TIME
from tests.planted.table import mistake

LATER = "a later token changes an earlier"
PADDING = "where `mask` is zero changes|beyond `lengths` changes|depends on the padded length"


# Causality


@mistake("causality", LATER)
class AttentionWithoutCausal(steps.LanguageModel):
    def make(self):
        super().make()
        self.attention = layers.MultiHeadAttention(SIZE, 2, rng=RNG, rotary_base=10000.0)


@mistake("causality", "target of phase `net` isn't shifted", causal="tokens")
class TargetsNotShifted(steps.LanguageModel):
    def loss(self, batch, rng):
        per_token = losses.softmax_cross_entropy(self.logits(batch["tokens"]), batch["tokens"])
        return Loss(per_token, weight=tf.ones_like(per_token))


@mistake("causality", "inputs that are the same slice as the targets")
class TargetsSlicedAsInputs(steps.LanguageModel):
    def loss(self, batch, rng):
        tokens = batch["tokens"]
        per_token = losses.softmax_cross_entropy(self.logits(tokens[:, 1:]), tokens[:, 1:])
        return Loss(per_token, weight=tf.ones_like(per_token))


@mistake("causality", LATER)
class ConvolutionOverTheFuture(steps.LanguageModel):
    def make(self):
        super().make()
        self.attention = layers.Conv1D(SIZE, SIZE, 3, rng=RNG)

    def logits(self, tokens, mask=None):
        return self.out(tf.nn.gelu(self.attention(self.words(tokens))))


@mistake("causality", LATER)
class ForecastReadsBackwards(steps.Forecaster):
    def predict(self, values):
        outputs, _ = layers.unroll(self.cell, tf.reverse(values, [1]))
        return self.out(tf.reverse(outputs, [1]))


@mistake("causality", "and has seen it")
class ShiftedTheWrongWay(steps.LanguageModel):
    def loss(self, batch, rng):
        tokens = batch["tokens"]
        per_token = losses.softmax_cross_entropy(self.logits(tokens), tf.roll(tokens, 1, axis=1))
        return Loss(per_token, weight=tf.ones_like(per_token))


# Padding that changes something


@mistake("padding", PADDING)
class MeanOverAllPositions(steps.SentenceClassifier):
    def pool(self, x, mask):
        return tf.reduce_mean(x, 1)


@mistake("padding", PADDING)
class AttentionToPadding(steps.SentenceClassifier):
    def features(self, batch):
        x = self.words(batch["tokens"])
        return self.pool(x + self.attention(x), batch["mask"])


@mistake("padding", PADDING)
class LastPositionOfThePaddedRow(steps.SentenceClassifier):
    def make(self):
        super().make()
        self.cell = layers.GRU(SIZE, SIZE, rng=RNG.fold(3))

    def features(self, batch):
        outputs, _ = layers.unroll(self.cell, self.words(batch["tokens"]))
        return outputs[:, -1] + 0.1 * super().features(batch)


@mistake("padding", PADDING)
class LossOfPaddedTokens(steps.PaddedLanguageModel):
    def loss(self, batch, rng):
        tokens = batch["tokens"]
        per_token = losses.softmax_cross_entropy(self.logits(tokens[:, :-1]), tokens[:, 1:])
        return Loss(per_token, weight=tf.ones_like(per_token))


# Masks inverted, or off by one


@mistake("mask", PADDING)
class InvertedWeight(steps.Tagger):
    def loss(self, batch, rng):
        return Loss(self.per_token(batch), weight=1.0 - batch["mask"])


@mistake("mask", PADDING)
class MaskOfTheInputs(steps.PaddedLanguageModel):
    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        return Loss(loss.per_example, weight=batch["mask"][:, :-1])


@mistake("mask", "off by one")
class OneLess(steps.Tagger):
    def make(self):
        super().make()
        del self.attention

    def loss(self, batch, rng):
        lengths = tf.reduce_sum(tf.cast(batch["mask"], tf.int32), 1)
        return Loss(self.per_token(batch), weight=tf.sequence_mask(lengths - 1, TIME, tf.float32))

    def per_token(self, batch):
        return losses.softmax_cross_entropy(self.out(self.words(batch["tokens"])), batch["tags"])


@mistake("mask", PADDING)
class OneMore(steps.SentenceClassifier):
    @staticmethod
    def batch():
        tokens = steps.labelled()
        return {"tokens": tokens["tokens"], "lengths": LENGTHS.astype("int32"), "label": tokens["label"]}

    def features(self, batch):
        mask = tf.cast(tf.range(TIME) <= batch["lengths"][:, tf.newaxis], tf.float32)
        return self.pool(self.words(batch["tokens"]), mask)

    def make(self):
        super().make()
        del self.attention


@mistake("mask", "holds beyond `length` changes")
class StateAfterTheEnd(steps.SentenceClassifier):
    @staticmethod
    def batch():
        made = steps.labelled()
        return {"tokens": made["tokens"], "length": LENGTHS.astype("int32"), "label": made["label"]}

    def make(self):
        super().make()
        self.attention = layers.GRU(SIZE, SIZE, rng=RNG.fold(3))

    def features(self, batch):
        outputs, _ = layers.unroll(self.attention, self.words(batch["tokens"]))
        return tf.gather(outputs, batch["length"], batch_dims=1)  # the last is at `length - 1`


# Sums over tokens, or padded lengths, instead of weights


@mistake("sum", "Return one loss per token")
class SumOverTokens(steps.LanguageModel):
    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(super().loss(batch, rng).per_example, 1))


@mistake("sum", "depends on the padded length|divided by the padded length")
class MeanOverThePaddedLength(steps.Tagger):
    def loss(self, batch, rng):
        return Loss(tf.reduce_mean(self.per_token(batch) * batch["mask"], 1))


@mistake("sum", "long rows count more")
class SumOverPositions(steps.Tagger):
    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(self.per_token(batch) * batch["mask"], 1))


@mistake("sum", "count in the mean")
class ProductWithTheWeight(steps.Regression):
    def loss(self, batch, rng):
        return Loss(tf.square(self.predict(batch) - batch["y"]) * batch["weight"])


@mistake("sum", "depends on the padded length")
class WeightOfAllPositions(steps.Tagger):
    def loss(self, batch, rng):
        per_token = self.per_token(batch) * batch["mask"]
        return Loss(per_token, weight=tf.ones_like(per_token))
