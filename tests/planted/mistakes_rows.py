"""Mistakes with rows: batch means, the order of rows, shapes that are broadcast."""

import tensorflow as tf

from core import layers, losses
from core.task import Loss, Statistics, Task
from tests.planted import steps
from tests.planted.table import mistake

MEAN = "Return one loss per row"


# Batch means


@mistake("batch mean", MEAN)
class MeanForEachRow(steps.Classifier):
    def loss(self, batch, rng):
        mean = tf.reduce_mean(super().loss(batch, rng).per_example)
        return Loss(tf.fill([batch["x"].shape[0]], mean))


@mistake("batch mean", MEAN)
class MeanUnderMixesRows(steps.Classifier):
    mixes_rows = True

    def loss(self, batch, rng):
        per_example = super().loss(batch, rng).per_example
        return Loss(tf.ones_like(per_example) * tf.reduce_mean(per_example))


@mistake("batch mean", MEAN)
class WeightOfLengthOne(steps.Regression):
    def loss(self, batch, rng):
        weight = batch["weight"] / tf.reduce_sum(batch["weight"])
        return Loss(tf.square(self.predict(batch) - batch["y"]), weight=weight)


@mistake("batch mean", MEAN)
class StandardisedOverTheBatch(steps.Regression):
    def predict(self, batch):
        x = batch["x"] - tf.reduce_mean(batch["x"], 0)
        return self.out(tf.nn.gelu(self.hidden(x)))[:, 0]


@mistake("batch mean", r"\[6, 1\] and \[6\] were broadcast to \[6, 6\]")
class EachAgainstAll(steps.Regression):
    def loss(self, batch, rng):
        prediction = self.out(tf.nn.gelu(self.hidden(batch["x"])))  # [rows, 1] with [rows]
        return Loss(tf.reduce_mean(tf.square(prediction - batch["y"]), -1), weight=batch["weight"])


# The order of rows


@mistake("row order", "order of the rows")
class NeighbourAsNegative(steps.Contrast):
    def loss(self, batch, rng):
        one, other = self.embed(batch["one"]), self.embed(batch["other"])
        return Loss(losses.triplet(one, other, tf.roll(other, 1, 0), margin=5.0))


@mistake("row order", "order of the rows")
class RowsAddedUp(steps.Classifier):
    def logits(self, batch, rng=None):
        return self.out(tf.nn.tanh(tf.cumsum(self.hidden(batch["x"]), 0)))


@mistake("row order", "order of the rows")
class TimeTakenForRows(steps.Forecaster):
    """`unroll` wants rows first."""

    def predict(self, values):
        outputs, _ = layers.unroll(self.cell, tf.transpose(values, [1, 0, 2]))
        return self.out(tf.transpose(outputs, [1, 0, 2]))


@mistake("row order", "order of the rows")
class ReshapedAcrossRows(steps.Autoencoder):
    def loss(self, batch, rng):
        image = batch["image"]
        x = tf.reshape(tf.transpose(image, [1, 2, 3, 0]), [image.shape[0], 16])
        return Loss(tf.reduce_mean(tf.square(self.decoder(self.encode(x)) - x), -1))


# Others that mix rows


@mistake("own: normalisation", "mixes_rows=True.*sync=True")
class NormalisationNotDeclared(steps.Normalised):
    mixes_rows = False


@mistake("own: normalisation", "Evaluate with the moving averages")
class EvaluatedAsTrained(steps.Normalised):
    def evaluate(self, batch):
        return Loss(losses.softmax_cross_entropy(self.logits(batch, None, Statistics()), batch["label"]))


@mistake("own: noise", r"rng\.rows")
class NoiseOfTheBatch(steps.Classifier):
    def loss(self, batch, rng):
        x = batch["x"] + 0.1 * rng.normal(batch["x"].shape)
        return Loss(losses.softmax_cross_entropy(self.logits({"x": x}), batch["label"]))

    evaluate = Task.evaluate


@mistake("own: noise", r"rng\.rows")
class LatentsOfTheBatch(steps.Adversarial):
    def sample_fakes(self, batch, rng):
        return {"fake": tf.sigmoid(self.g(rng.normal([batch["image"].shape[0], 3])))}


@mistake("own: contrast", "compares the row with the others. Set `mixes_rows=True`")
class ContrastNotDeclared(steps.Contrast):
    mixes_rows = False


@mistake("own: diversity", MEAN)
class DiversityOfFakes(steps.Adversarial):
    def g_loss(self, batch, rng):
        spread = tf.math.reduce_variance(batch["fake"], 0)
        return Loss(super().g_loss(batch, rng).per_example - tf.reduce_mean(spread))


@mistake("own: hardest rows", MEAN)
class HardestRows(steps.Classifier):
    def loss(self, batch, rng):
        per_example = super().loss(batch, rng).per_example
        return Loss(per_example, weight=tf.cast(per_example >= tf.reduce_max(per_example) * 0.9, tf.float32))


@mistake("own: normalised weight", MEAN)
class ClassBalanceOfTheBatch(steps.Classifier):
    def loss(self, batch, rng):
        same = tf.cast(batch["label"][:, tf.newaxis] == batch["label"], tf.float32)
        return Loss(super().loss(batch, rng).per_example, weight=1.0 / tf.reduce_sum(same, 1))
