"""Mistakes with gradients and numbers: untrained variables, stopped paths, detours, updates to NaN."""

import numpy as np
import tensorflow as tf

from core import layers, losses
from core.optimizers import sgd
from core.task import Loss, Update
from tests.planted import steps
from tests.planted.steps import CLASSES, RNG, SIZE
from tests.planted.table import mistake

SLOPE = "isn't the slope of its loss"


# A variable that is used, but not trained by any phase


@mistake("untrained", "no phase of .* trains .*`out/w`")
class HeadForgotten(steps.Classifier):
    def phases(self):
        return [Update("net", loss=self.loss, trains=self.hidden, optimizer=sgd(0.1))]


@mistake("untrained", "which isn't part of the task")
class LayerInAClosure(steps.Classifier):
    def make(self):
        super().make()
        scale = tf.Variable(tf.ones([SIZE]), name="scale")
        self.activation = lambda x: tf.nn.tanh(x) * scale

    def logits(self, batch, rng=None):
        return self.out(self.activation(self.hidden(batch["x"])))


@mistake("untrained", "no phase of .* trains `temperature`")
class TemperatureForgotten(steps.Contrast):
    def make(self):
        super().make()
        self.temperature = tf.Variable(0.0)

    def phases(self):
        return [Update("net", loss=self.loss, trains=[self.net, self.head], optimizer=sgd(0.1), mixes_rows=True)]

    def loss(self, batch, rng):
        one, other = (tf.math.l2_normalize(self.embed(batch[key]), -1) for key in ("one", "other"))
        logits = tf.matmul(one, other, transpose_b=True) * tf.exp(self.temperature)
        return Loss(losses.softmax_cross_entropy(logits, tf.range(logits.shape[0])))


# One of two paths stopped


@mistake("stopped", SLOPE)
class TiedWeightsStopped(steps.Autoencoder):
    def make(self):
        self.encoder = layers.Linear(16, 4, rng=RNG)

    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        z = tf.nn.tanh(self.encoder(x))
        return Loss(tf.reduce_mean(tf.square(tf.matmul(z, tf.stop_gradient(self.encoder.w), transpose_b=True) - x), -1))


@mistake("stopped", SLOPE)
class BranchThroughNumpy(steps.Classifier):
    """A gate rounded to 0 and 1, which has no gradient."""

    def logits(self, batch, rng=None):
        h = self.hidden(batch["x"])
        gate = tf.stop_gradient(tf.sigmoid(h))
        return self.out(tf.nn.tanh(h) * gate)


@mistake("stopped", SLOPE)
class SpreadAsTarget(steps.Variational):
    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        mean, log_scale = self.encoder(x), self.spread(x)
        noise = 0.0 if rng is None else rng.rows.normal(*mean.shape)
        z = tf.stop_gradient(mean) + tf.exp(log_scale) * noise
        error = tf.reduce_sum(tf.square(self.decoder(z) - x), -1)
        return Loss(error + tf.reduce_sum(0.5 * (tf.square(mean) + tf.exp(2.0 * log_scale)) - log_scale, -1))


# Detours through other floats


@mistake("detour", "computes in float16 at")
class HalfLogits(steps.Classifier):
    def logits(self, batch, rng=None):
        logits = super().logits(batch, rng)
        return tf.cast(tf.cast(logits, tf.float16), tf.float32)


@mistake("detour", "computes in bfloat16 at")
class HalfHidden(steps.Regression):
    def predict(self, batch):
        h = tf.nn.gelu(self.hidden(tf.cast(batch["x"], tf.bfloat16)))
        return tf.cast(self.out(h), tf.float32)[:, 0]


@mistake("detour", "computes in float64 at")
class StandardisedByNumpy(steps.Regression):
    def predict(self, batch):
        mean, scale = np.linspace(-1.0, 1.0, 5), np.full(5, 2.0)
        x = tf.cast((tf.cast(batch["x"], tf.float64) - mean) / scale, tf.float32)
        return self.out(tf.nn.gelu(self.hidden(x)))[:, 0]


@mistake("detour", "variable `scale` is float64")
class DoubleVariable(steps.Classifier):
    def make(self):
        super().make()
        self.scale = tf.Variable(np.ones(CLASSES))

    def logits(self, batch, rng=None):
        return super().logits(batch, rng) * tf.cast(self.scale, tf.float32)


@mistake("detour", "computes in float16 at .*tf.float16")
class HalfInALoop(steps.Classifier):
    def logits(self, batch, rng=None):
        logits = super().logits(batch, rng)
        return tf.map_fn(lambda row: tf.cast(tf.cast(row, tf.float16), tf.float32), logits)


# An update to NaN


@mistake("nan", "gradient of .* isn't finite, though the loss is")
class NormOfZero(steps.Contrast):
    @staticmethod
    def batch():
        one = steps.random(steps.ROWS, 5)
        return {"one": one, "other": np.concatenate([one[:1], steps.views()["other"][1:]])}

    mixes_rows = False

    def loss(self, batch, rng):
        return Loss(tf.norm(self.embed(batch["one"]) - self.embed(batch["other"]), axis=-1))


@mistake("nan", "gradient of .* isn't finite, though the loss is")
class WhereOfTheResult(steps.Regression):
    def loss(self, batch, rng):
        error, weight = tf.square(self.predict(batch) - batch["y"]), batch["weight"]
        return Loss(tf.where(weight > 0.0, error / weight, 0.0))


@mistake("nan", "the loss of phase `net` isn't finite")
class LogarithmOfARoundedProbability(steps.Classifier):
    def loss(self, batch, rng):
        probabilities = tf.nn.softmax(100.0 * self.logits(batch))
        return Loss(-tf.math.log(tf.gather(probabilities, batch["label"], batch_dims=1)))


@mistake("nan", "NaN or infinite")
class RateBeyondAllMeasure(steps.Regression):
    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(1e30))]


@mistake("nan", "isn't finite")
class StandardisedByItsOwnSpread(steps.Autoencoder):
    """A black image has a spread of zero."""

    @staticmethod
    def batch():
        image = steps.images()["image"]
        image[0] = 0.0
        return {"image": image}

    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        x = (x - tf.reduce_mean(x, -1, keepdims=True)) / tf.math.reduce_std(x, -1, keepdims=True)
        return Loss(tf.reduce_mean(tf.square(self.decoder(self.encode(x)) - x), -1))


# A softmax, or sigmoid, twice


@mistake("softmax", "a softmax twice")
class NetEndsInSoftmax(steps.Classifier):
    def logits(self, batch, rng=None):
        return tf.nn.softmax(super().logits(batch, rng))


@mistake("softmax", "a softmax twice")
class SoftLabels(steps.Classifier):
    def loss(self, batch, rng):
        probabilities = tf.nn.softmax(self.logits(batch))
        return Loss(losses.softmax_cross_entropy(probabilities, tf.one_hot(batch["label"], CLASSES)))


@mistake("softmax", "a sigmoid twice")
class DiscriminatorEndsInSigmoid(steps.Adversarial):
    def judge(self, x):
        return tf.sigmoid(self.d(x))[:, 0]

    def d_loss(self, batch, rng):
        real, fake = self.judge(layers.flatten(batch["image"])), self.judge(batch["fake"])
        ones = losses.sigmoid_cross_entropy(real, tf.ones_like(real))
        return Loss(ones + losses.sigmoid_cross_entropy(fake, tf.zeros_like(fake)))


@mistake("softmax", "a softmax twice")
class ClippedProbabilities(steps.Classifier):
    def logits(self, batch, rng=None):
        return tf.clip_by_value(tf.nn.softmax(super().logits(batch, rng)), 1e-7, 1.0)


@mistake("softmax", "a softmax twice")
class WrittenOut(steps.Classifier):
    def loss(self, batch, rng):
        probabilities = tf.nn.softmax(tf.nn.softmax(self.logits(batch)))
        return Loss(-tf.math.log(tf.gather(probabilities, batch["label"], batch_dims=1)))


# A constant label


@mistake("label", "`label` changes no loss")
class ArgmaxOfTheWrongAxis(steps.Classifier):
    def loss(self, batch, rng):
        label = tf.argmax(tf.one_hot(batch["label"], CLASSES)[:, tf.newaxis], 1)[:, 0]
        return Loss(losses.softmax_cross_entropy(self.logits(batch), label))


@mistake("label", "`label` is read by the loss of `evaluate`, but by no phase")
class ZeroesForAll(steps.Classifier):
    def loss(self, batch, rng):
        return Loss(losses.softmax_cross_entropy(self.logits(batch), tf.zeros([batch["x"].shape[0]], tf.int32)))

    def evaluate(self, batch):
        return Loss(losses.softmax_cross_entropy(self.logits(batch), batch["label"]))


@mistake("label", "the labels of phase `net` are constant")
class LabelNeverRead(steps.Classifier):
    def loss(self, batch, rng):
        logits = self.logits(batch)
        return Loss(losses.softmax_cross_entropy(logits, tf.ones_like(logits[:, 0], tf.int32)))
