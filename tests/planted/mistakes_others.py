"""Mistakes of other kinds: shapes, labels, vanishing gradients, unread metrics."""

import numpy as np
import tensorflow as tf

from core import layers, losses, metrics
from core.optimizers import sgd
from core.task import Loss, Task, Update
from tests.planted import steps
from tests.planted.steps import CLASSES, RNG, ROWS, SIZE
from tests.planted.table import mistake


@mistake("own: a scalar", "Return one value per example")
class ScalarLoss(steps.Classifier):
    def loss(self, batch, rng):
        return Loss(tf.reduce_mean(super().loss(batch, rng).per_example))


@mistake("own: a tensor", "returns `Loss")
class NoLoss(steps.Regression):
    def loss(self, batch, rng):
        return tf.square(self.predict(batch) - batch["y"])


@mistake("own: broadcast", "without a `weight`")
class PairsOfRows(steps.Regression):
    def loss(self, batch, rng):
        return Loss(tf.square(self.out(self.hidden(batch["x"])) - batch["y"]))


@mistake("own: dead", "gradient of `hidden/.` in phase `net` is zero everywhere")
class DeadActivation(steps.Classifier):
    def logits(self, batch, rng=None):
        return self.out(tf.nn.relu(-tf.square(self.hidden(batch["x"])) - 1.0) + batch["x"][:, :1])


@mistake("own: multiplied by zero", "gradient of .* is zero everywhere")
class BranchSwitchedOff(steps.Classifier):
    def make(self):
        super().make()
        self.branch = layers.Linear(5, CLASSES, rng=RNG.fold(4))
        self.share = 0.0

    def logits(self, batch, rng=None):
        return super().logits(batch, rng) + self.share * self.branch(batch["x"])


@mistake("own: rounding", "its loss doesn't depend on .*(rounding|cast to integers)")
class QuantisedCode(steps.Autoencoder):
    def encode(self, x):
        return tf.round(4.0 * super().encode(x)) / 4.0


@mistake("own: argmax", "doesn't depend on")
class DecodesTheBest(steps.Autoencoder):
    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        code = tf.one_hot(tf.argmax(self.encode(x), -1), 4)
        return Loss(tf.reduce_mean(tf.square(self.decoder(code) - x), -1))


@mistake("own: integers", "doesn't depend on")
class IntegersOnTheWay(steps.Regression):
    def predict(self, batch):
        return tf.cast(tf.cast(100.0 * super().predict(batch), tf.int32), tf.float32) / 100.0


@mistake("own: trained but unused", "doesn't depend on")
class LayerNeverCalled(steps.Classifier):
    def make(self):
        super().make()
        self.spare = layers.Linear(SIZE, SIZE, rng=RNG.fold(4))


@mistake("own: wrong network", "doesn't depend on")
class DiscriminatorsLossTrainsTheGenerator(steps.Adversarial):
    def phases(self):
        compute = super().phases()[0]
        return [compute, Update("d", loss=self.d_loss, trains=self.g, optimizer=sgd(0.1)),
                Update("g", loss=self.g_loss, trains=self.d, optimizer=sgd(0.1), through="sample")]  # fmt: skip


@mistake("own: weight ignored", "where `weight` is zero changes the loss")
class WeightForgotten(steps.Regression):
    def loss(self, batch, rng):
        return Loss(tf.square(self.predict(batch) - batch["y"]))


@mistake("own: weight twice", "the loss of phase `net` isn't finite .*division")
class WeightOfZeroDivides(steps.Regression):
    def loss(self, batch, rng):
        return Loss(tf.square(self.predict(batch) - batch["y"]) / batch["weight"], weight=tf.ones([ROWS]))

    evaluate = Task.evaluate


@mistake("own: ignored input", "`x` changes no loss")
class InputMultipliedAway(steps.Classifier):
    def logits(self, batch, rng=None):
        return super().logits({"x": batch["x"] * 0.0})


@mistake("own: label in the input", "`label` changes no loss")
class MetricOfTheLabelOnly(steps.Autoencoder):
    """A conditional autoencoder that ignores the condition."""

    @staticmethod
    def batch():
        return {**steps.images(), "label": steps.vectors()["label"]}

    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        return loss._replace(metrics={"class": tf.cast(batch["label"], tf.float32)})


@mistake("own: label out of range", "label value of 3 .* outside the valid range|the loss .* isn't finite")
class LabelsFromOne(steps.Classifier):
    def loss(self, batch, rng):
        return Loss(losses.softmax_cross_entropy(self.logits(batch), batch["label"] + 1))


@mistake("own: another figure in evaluation", "`y` is read by the loss of `evaluate`, but by no phase")
class TrainsOnTheInput(steps.Regression):
    @staticmethod
    def batch():
        return {key: x for key, x in steps.weighted().items() if key != "weight"}

    def loss(self, batch, rng):
        return Loss(tf.square(self.predict(batch) - batch["x"][:, 0]))

    def evaluate(self, batch):
        return Loss(tf.square(self.predict(batch) - batch["y"]))


@mistake("own: metric of padding", "changes a metric")
class MetricOverPadding(steps.Tagger):
    def loss(self, batch, rng):
        right = tf.cast(tf.reduce_mean(tf.cast(batch["tags"], tf.float32), 1, keepdims=True), tf.float32)
        return Loss(self.per_token(batch), batch["mask"], metrics={"mean_tag": right + 0.0 * batch["mask"]})


@mistake("own: first token", "the first position of each row .*off by one")
class FirstTokenCutOff(steps.Tagger):
    def per_token(self, batch):
        return losses.softmax_cross_entropy(self.out(self.words(batch["tokens"])), batch["tags"])

    def make(self):
        super().make()
        del self.attention

    def loss(self, batch, rng):
        mask = batch["mask"] * tf.cast(tf.range(steps.TIME) > 0, tf.float32)
        return Loss(self.per_token(batch), weight=mask)


@mistake("own: a Python branch on values", "a Python `if`.* asks whether a tensor is true")
class BranchOnALoss(steps.Classifier):
    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        return loss if tf.reduce_mean(loss.per_example) > 0.0 else Loss(tf.zeros([ROWS]))


@mistake("own: values by NumPy", "Python or NumPy asks for the value of a tensor")
class ValuesByNumPy(steps.Regression):
    def loss(self, batch, rng):
        error = self.predict(batch).numpy() - batch["y"]
        return Loss(tf.square(error), weight=batch["weight"])


@mistake("own: a gradient of its own", "isn't the slope")
class OwnGradient(steps.Classifier):
    """A swish with a sigmoid's gradient."""

    def logits(self, batch, rng=None):
        @tf.custom_gradient
        def swish(x):
            gate = tf.sigmoid(x)
            return x * gate, lambda dy: dy * gate * (1.0 - gate)

        return self.out(swish(self.hidden(batch["x"])))


@mistake("own: second derivative", "isn't the slope")
class PenaltyWithoutItsGradient(steps.Adversarial):
    def d_loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = self.d(x)
        penalty = tf.reduce_sum(tf.square(tf.stop_gradient(tape.gradient(score, x))), -1)
        return Loss(super().d_loss(batch, rng).per_example + 10.0 * penalty)


@mistake("own: infinite weight", "the weight of phase `net` isn't finite .*division by zero")
class InverseFrequency(steps.Classifier):
    counts = np.array([10.0, 0.0, 5.0], "float32")

    def loss(self, batch, rng):
        return Loss(super().loss(batch, rng).per_example, weight=tf.gather(1.0 / self.counts, batch["label"]))


@mistake("own: overwritten", "holds one variable twice")
class TrainsTwice(steps.Classifier):
    def phases(self):
        return [Update("net", loss=self.loss, trains=[self, self.hidden], optimizer=sgd(0.1))]


@mistake("own: swapped", "`logits` is int32")
class ArgumentsSwapped(steps.Classifier):
    def loss(self, batch, rng):
        return Loss(losses.softmax_cross_entropy(batch["label"], self.logits(batch)))


@mistake("own: probabilities as labels", "the loss of phase `d` isn't finite .*labels out of range")
class LabelsOfOtherRange(steps.Adversarial):
    """Hinge labels of ±1 in a cross-entropy."""

    def d_loss(self, batch, rng):
        real, fake = self.d(layers.flatten(batch["image"])), self.d(batch["fake"])
        ones = losses.sigmoid_cross_entropy(real, tf.ones_like(real))
        return Loss((ones + losses.sigmoid_cross_entropy(fake, -tf.ones_like(fake)))[:, 0])


@mistake("own: accuracy as loss", "its loss doesn't depend on")
class TrainsOnAccuracy(steps.Classifier):
    def loss(self, batch, rng):
        return Loss(1.0 - metrics.accuracy(self.logits(batch), batch["label"]))


@mistake("own: wrong weight", "`weight` of shape")
class WeightOfRowsForTokens(steps.Tagger):
    def loss(self, batch, rng):
        return Loss(self.per_token(batch), weight=tf.ones([ROWS]))


@mistake("own: saturated", "is zero everywhere.*an activation that is flat")
class Saturated(steps.Classifier):
    """Pixels of 0 to 255 times a thousand, into a tanh."""

    def logits(self, batch, rng=None):
        return self.out(tf.nn.tanh(self.hidden(1e5 * (batch["x"] + 3.0)) * 1e3))
