"""Mistakes with state and randomness: one rng for two purposes, growing lists, evaluation that varies, side effects."""

import numpy as np
import tensorflow as tf

from core import layers, losses
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from tests.planted import steps
from tests.planted.steps import RNG, SIZE
from tests.planted.table import mistake

TWO = "the same random numbers for two purposes"
PYTHON = "keeps nothing in Python"


# One rng for two purposes


@mistake("rng", TWO)
class SameRngForTwoDropouts(steps.Classifier):
    def make(self):
        super().make()
        self.middle = layers.Linear(SIZE, SIZE, rng=RNG.fold(5))
        self.dropout = layers.Dropout(0.3)

    def logits(self, batch, rng=None):
        h = self.dropout(tf.nn.tanh(self.hidden(batch["x"])), rng)
        return self.out(self.dropout(tf.nn.tanh(self.middle(h)), rng))


@mistake("rng", TWO)
class ViewsThatAreTheSame(steps.Contrast):
    batch = staticmethod(steps.vectors)

    def loss(self, batch, rng):
        x = batch["x"]
        one, other = (x + 0.3 * rng.rows.normal(*x.shape) for _ in range(2))
        return Loss(losses.info_nce(self.embed(one), self.embed(other), temperature=0.5))


@mistake("rng", TWO)
class SameNameFoldedTwice(steps.Variational):
    def loss(self, batch, rng):
        if rng is None:
            return super().loss(batch, rng)
        image = batch["image"] + 0.1 * rng.fold("noise").rows.normal(*batch["image"].shape)
        return super().loss({"image": image}, rng.fold("noise"))


# A growing Python list


@mistake("list", PYTHON)
class HistoryOfLosses(steps.Classifier):
    def make(self):
        super().make()
        self.history = []

    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        self.history.append(loss.per_example)
        return loss


@mistake("list", PYTHON)
class PoolOfFakesInPython(steps.Adversarial):
    pool = []  # noqa: RUF012

    def d_loss(self, batch, rng):
        self.pool.append(batch["fake"])
        return super().d_loss({**batch, "fake": self.pool[-1]}, rng)


@mistake("list", PYTHON)
class CacheByStep(steps.Forecaster):
    def make(self):
        super().make()
        self.cache = {}

    def loss(self, batch, rng):
        self.cache[len(self.cache)] = batch["values"].shape
        return super().loss(batch, rng)


# Evaluation that isn't deterministic


@mistake("evaluation", "TensorFlow's own generator")
class EvaluatedWithNoise(steps.Variational):
    def evaluate(self, batch):
        x = layers.flatten(batch["image"])
        z = self.encoder(x) + tf.exp(self.spread(x)) * tf.random.normal([x.shape[0], 4])
        return Loss(tf.reduce_sum(tf.square(self.decoder(z) - x), -1))


@mistake("evaluation", "isn't the same in a second call")
class EvaluatedWithNumPy(steps.Classifier):
    def evaluate(self, batch):
        x = batch["x"] * np.random.binomial(1, 0.5, batch["x"].shape).astype("float32")
        return Loss(losses.softmax_cross_entropy(self.logits({"x": x}), batch["label"]))


@mistake("evaluation", PYTHON + "|isn't the same")
class EvaluatedWithACounter(steps.Dropping):
    calls = 0

    def evaluate(self, batch):
        self.calls += 1
        return self.loss(batch, Rng.from_seed(self.calls)._replace(num_rows=batch["x"].shape[0]))


# Side effects


@mistake("side effect", "writes the variable")
class StepCounter(steps.Classifier):
    def make(self):
        super().make()
        self.count = tf.Variable(0, trainable=False)

    def loss(self, batch, rng):
        self.count.assign_add(1)
        return super().loss(batch, rng)


@mistake("side effect", "writes the variable")
class WeightsClipped(steps.Adversarial):
    """Wasserstein's clipping, in the loss."""

    def d_loss(self, batch, rng):
        for variable in self.d.parameters().values():
            variable.assign(tf.clip_by_value(variable, -0.1, 0.1))
        return super().d_loss(batch, rng)


@mistake("side effect", PYTHON)
class CallsCounted(steps.Dropping):
    calls = 0

    def loss(self, batch, rng):
        self.calls += 1
        return super().loss(batch, rng)


@mistake("side effect", "calls Python")
class FiguresByNumPy(steps.Regression):
    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        middle = tf.numpy_function(lambda x: np.float32(np.median(x)), [loss.per_example], tf.float32)
        return loss._replace(metrics={"median": tf.fill(loss.per_example.shape, middle)})


# Others


@mistake("own: noise", "TensorFlow's own generator")
class NoiseOfTensorFlow(steps.Autoencoder):
    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        return Loss(tf.reduce_mean(tf.square(self.decoder(self.encode(x + tf.random.normal(x.shape))) - x), -1))


@mistake("own: noise", "isn't the same in a second call")
class NoiseOfNumPy(steps.Forecaster):
    def loss(self, batch, rng):
        values = batch["values"]
        return super().loss({"values": values + 0.1 * np.random.standard_normal(values.shape).astype("float32")}, rng)


@mistake("own: the same noise for ever", "the same random numbers in every step")
class NoiseOfAFixedSeed(steps.Autoencoder):
    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        noisy = x + 0.1 * Rng.from_seed(0).rows.normal(*x.shape)
        return Loss(tf.reduce_mean(tf.square(self.decoder(self.encode(noisy)) - x), -1))

    evaluate = Task.evaluate


@mistake("own: the same noise for ever", "the same random numbers in every step")
class RngKeptFromTheStart(steps.Dropping):
    def make(self):
        super().make()
        self.rng = RNG.fold("noise")

    def logits(self, batch, rng=None):
        x = batch["x"] + (0.0 if rng is None else 0.1 * self.rng.rows.normal(*batch["x"].shape))
        return self.out(self.dropout(tf.nn.tanh(self.hidden(x)), rng))


@mistake("own: variable in the step", "made a variable")
class VariableInTheStep(steps.Classifier):
    def loss(self, batch, rng):
        scale = tf.Variable(tf.ones([SIZE]))
        return Loss(losses.softmax_cross_entropy(self.out(self.hidden(batch["x"]) * scale), batch["label"]))


@mistake("own: averages by hand", "writes the variable")
class TeacherMovedInTheLoss(steps.Classifier):
    def make(self):
        super().make()
        self.teacher = tf.Variable(self.hidden.w, trainable=False)

    def loss(self, batch, rng):
        self.teacher.assign(0.99 * self.teacher + 0.01 * self.hidden.w)
        distance = tf.reduce_mean(tf.square(batch["x"] @ self.teacher - self.hidden(batch["x"])), -1)
        return Loss(super().loss(batch, rng).per_example + distance)


@mistake("own: a fake without the generator", "doesn't depend on")
class FakesStopped(steps.Adversarial):
    def g_loss(self, batch, rng):
        return super().g_loss({**batch, "fake": tf.stop_gradient(batch["fake"])}, rng)


@mistake("own: the generator left out", "no phase of .* trains .*`g/w`")
class GeneratorNeverTrained(steps.Adversarial):
    def phases(self):
        return [
            Compute("sample", self.sample_fakes),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.1)),
        ]
