"""Correct steps, in one long file because it is a table: many look like a mistake, and each must pass."""

import numpy as np
import tensorflow as tf

from core import initializers, layers, losses, metrics
from core.optimizers import adamw, sgd
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from models.translation.image_pool import ImagePool
from tests.planted import steps
from tests.planted.steps import CLASSES, LENGTHS, RNG, ROWS, SIZE, TIME, WORDS
from tests.planted.table import correct

for step in (
    steps.Classifier,
    steps.Dropping,
    steps.Normalised,
    steps.Regression,
    steps.LanguageModel,
    steps.PaddedLanguageModel,
    steps.SentenceClassifier,
    steps.Tagger,
    steps.Forecaster,
    steps.Autoencoder,
    steps.Variational,
    steps.Contrast,
    steps.Adversarial,
):
    correct()(step)


@correct()
class LastLayerOfZeros(steps.Classifier):
    """All losses are log 3 at first, and all gradients but the last layer's are zero."""

    def make(self):
        super().make()
        self.out = layers.Linear(SIZE, CLASSES, rng=RNG, w_init=initializers.zeros())


@correct(except_for=["0/*", "1/*"])
class TwoViewsOneStopped(steps.Contrast):
    """SimSiam (Chen and He, 2021): the target isn't trained through."""

    mixes_rows = False

    def phases(self):
        return [Update("net", loss=self.loss, trains=[self.net, self.head, self.guess], optimizer=sgd(0.1))]

    def make(self):
        super().make()
        self.guess = layers.Linear(4, 4, rng=RNG.fold(2))

    def loss(self, batch, rng):
        one, other = self.embed(batch["one"]), self.embed(batch["other"])
        return Loss(losses.cosine_distance(self.guess(one), tf.stop_gradient(other)))


@correct(except_for=["encoder/*"])
class CodesPassedStraightThrough(steps.Autoencoder):
    """The gradient of rounding is taken to be one."""

    def encode(self, x):
        z = super().encode(x)
        return z + tf.stop_gradient(tf.round(z) - z)


@correct()
class Distilled(steps.Classifier):
    """The teacher isn't trained."""

    def make(self):
        super().make()
        self.teacher = tf.Variable(RNG.fold("teacher").normal([5, CLASSES]), trainable=False)

    def loss(self, batch, rng):
        targets = tf.nn.softmax(batch["x"] @ self.teacher)
        logits = self.logits(batch, rng)
        hard = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(0.5 * hard + 0.5 * losses.kl_divergence(logits, targets))


@correct()
class MaskedWords(steps.SentenceClassifier):
    """Devlin et al. (2019): words are hidden at random, and guessed from both sides."""

    batch = staticmethod(steps.text)

    def make(self):
        super().make()
        self.words, self.out = layers.Embedding(WORDS + 1, SIZE, rng=RNG), layers.Linear(SIZE, WORDS, rng=RNG.fold(9))

    def loss(self, batch, rng):
        tokens = batch["tokens"]
        hidden = rng.rows.uniform(*tokens.shape) < 0.4
        x = self.words(tf.where(hidden, WORDS, tokens))
        logits = self.out(x + self.attention(x))
        return Loss(losses.softmax_cross_entropy(logits, tokens), weight=tf.cast(hidden, tf.float32))


@correct()
class LengthsOfSentences(steps.SentenceClassifier):
    @staticmethod
    def batch():
        made = steps.labelled()
        return {"tokens": made["tokens"], "lengths": LENGTHS.astype("int32"), "label": made["label"]}

    def make(self):
        super().make()
        self.attention = layers.GRU(SIZE, SIZE, rng=RNG.fold(3))

    def features(self, batch):
        return layers.unroll(self.attention, self.words(batch["tokens"]), lengths=batch["lengths"])[1]


@correct()
class MeanOverTokensOfOneLength(steps.LanguageModel):
    def loss(self, batch, rng):
        return Loss(tf.reduce_mean(super().loss(batch, rng).per_example, 1))


@correct(causal="tokens")
class ShiftedToTheRight(steps.LanguageModel):
    """Predicts each token from those before it, the first from a zero."""

    def loss(self, batch, rng):
        tokens = batch["tokens"]
        before = tf.concat([tf.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
        per_token = losses.softmax_cross_entropy(self.logits(before), tokens)
        return Loss(per_token, weight=tf.ones_like(per_token))


@correct(causal="tokens")
class TargetsOfTheirOwn(steps.LanguageModel):
    @staticmethod
    def batch():
        tokens = steps.integers(WORDS, ROWS, TIME + 1)
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}

    def loss(self, batch, rng):
        per_token = losses.softmax_cross_entropy(self.logits(batch["tokens"]), batch["targets"])
        return Loss(per_token, weight=tf.ones_like(per_token))


@correct()
class TiedWords(steps.PaddedLanguageModel):
    """One table for input and output; the logits of padding are never read."""

    def make(self):
        super().make()
        del self.out

    def logits(self, tokens, mask=None):
        x = self.words(tokens)
        return self.words.logits(x + self.attention(x, mask=mask))


@correct()
class MeanOfEachSentence(steps.Tagger):
    """Each sentence counts once, whatever its length."""

    def loss(self, batch, rng):
        per_token = tf.where(batch["mask"] > 0.0, self.per_token(batch), 0.0)
        return Loss(tf.reduce_sum(per_token, 1) / tf.reduce_sum(batch["mask"], 1))


@correct()
class GradientPenalty(steps.Adversarial):
    """Gulrajani et al. (2017)."""

    def d_loss(self, batch, rng):
        real, fake = layers.flatten(batch["image"]), batch["fake"]
        x = fake + rng.rows.uniform(real.shape[0], 1) * (real - fake)
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = self.d(x)
        length = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(score, x)), -1) + 1e-12)
        return Loss(self.d(fake)[:, 0] - self.d(real)[:, 0] + 10.0 * tf.square(length - 1.0))


@correct()
class FakesWithoutGradient(steps.Adversarial):
    """The generator isn't trained here, so its fakes needn't be differentiable."""

    def d_loss(self, batch, rng):
        return super().d_loss({**batch, "fake": tf.stop_gradient(batch["fake"])}, rng)

    @staticmethod
    def batch():
        return {**steps.images(), "label": steps.vectors()["label"]}  # which the source has, and no phase reads


@correct()
class RareClasses(steps.Classifier):
    """Some labels are missing; classes have weights."""

    @staticmethod
    def batch():
        return {**steps.vectors(), "label": np.array([0, -1, 2, 2, 1, 0], "int32")}

    def loss(self, batch, rng):
        logits, label = self.logits(batch), batch["label"]
        return Loss(
            losses.softmax_cross_entropy(logits, label, ignore=-1, label_smoothing=0.1),
            weight=losses.label_weights(label, ignore=-1, class_weights=[1.0, 2.0, 0.5]),
        )


@correct()
class Convolutions(steps.One):
    @staticmethod
    def batch():
        return {**steps.images(), "label": steps.vectors()["label"]}

    def make(self):
        self.net = layers.Sequential([
            layers.Conv2D(1, 4, 3, rng=RNG), layers.GroupNorm(4, 2), tf.nn.silu,
            layers.Residual(layers.Sequential([layers.Conv2D(4, 4, 3, rng=RNG.fold(1)), layers.StochasticDepth(0.2)])),
            layers.global_average_pool, layers.Linear(4, CLASSES, rng=RNG.fold(2)),
        ])  # fmt: skip

    def loss(self, batch, rng):
        return Loss(losses.softmax_cross_entropy(self.net(batch["image"], rng), batch["label"]))

    def evaluate(self, batch):
        return self.loss(batch, None)


@correct()
class TwoHeads(steps.Classifier):
    @staticmethod
    def batch():
        return {**steps.vectors(), "y": steps.random(ROWS)}

    def make(self):
        super().make()
        self.second = layers.Linear(SIZE, 1, rng=RNG.fold(7))

    def loss(self, batch, rng):
        h = tf.nn.relu(self.hidden(batch["x"]))
        one = losses.softmax_cross_entropy(self.out(h), batch["label"])
        other = losses.squared_error(self.second(h)[:, 0], batch["y"])
        return Loss(one + 0.1 * other, metrics={"class": one, "value": other})


@correct()
class ManyLabels(steps.Classifier):
    """Computes probabilities only for a metric."""

    @staticmethod
    def batch():
        return {"x": steps.random(ROWS, 5), "labels": steps.integers(2, ROWS, CLASSES).astype("float32")}

    def loss(self, batch, rng):
        logits = self.logits(batch)
        right = tf.cast((tf.sigmoid(logits) > 0.5) == (batch["labels"] > 0.5), tf.float32)
        per_label = losses.sigmoid_cross_entropy(logits, batch["labels"])
        return Loss(tf.reduce_sum(per_label, -1), metrics={"right": tf.reduce_mean(right, -1)})


@correct(except_for=["bfloat16"])
class HalfOnPurpose(steps.Classifier):
    def logits(self, batch, rng=None):
        return super().logits({"x": tf.cast(batch["x"], tf.bfloat16)}, rng)


@correct()
class Diffusion(steps.Autoencoder):
    """Ho et al. (2020): predicts the noise of a level that is drawn for each row."""

    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        level = rng.fold("level").rows.uniform(x.shape[0], 1)
        noise = rng.fold("noise").rows.normal(*x.shape)
        return Loss(self._error(x, level, noise))

    def _error(self, x, level, noise):
        guess = self.decoder(self.encode(tf.sqrt(1.0 - level) * x + tf.sqrt(level) * noise) * (1.0 + level))
        return tf.reduce_mean(tf.square(guess - noise), -1)

    def evaluate(self, batch):
        x = layers.flatten(batch["image"])
        noise = Rng.from_seed(0).normal([x.shape[1]])  # the same for every row
        return Loss(self._error(x, 0.5 * tf.ones_like(x[:, :1]), tf.broadcast_to(noise, x.shape)))


@correct()
class Pooled(steps.Adversarial):
    """Shrivastava et al. (2017): the discriminator sees fakes of earlier steps as well."""

    def __init__(self):
        super().__init__()
        self.pool = ImagePool(4, [16])

    def phases(self):
        sample, d, g = super().phases()
        pool = Compute("pool", lambda batch, rng: self.pooled(batch, rng), state=self.pool)
        return [sample, pool, d, g]

    def pooled(self, batch, rng):
        fakes, values = self.pool(batch["fake"], rng)
        return {"old": fakes}, values

    def d_loss(self, batch, rng):
        return super().d_loss({**batch, "fake": batch["old"]}, rng)


@correct()
class SpectralNormalised(steps.Adversarial):
    """Miyato et al. (2018)."""

    def __init__(self):
        super().__init__()
        self.d = layers.Sequential([
            layers.SpectralNorm(layers.Linear(16, SIZE, rng=RNG.fold(1)), rng=RNG.fold(3)), tf.nn.tanh,
            layers.Linear(SIZE, 1, rng=RNG.fold(2)),
        ])  # fmt: skip


@correct()
class Counted(steps.Classifier):
    """Additive states as metrics; Adam; a penalty on the weights, for every row."""

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=adamw(1e-2))]

    def loss(self, batch, rng):
        logits = self.logits(batch, rng)
        penalty = 1e-2 * tf.reduce_sum(tf.square(self.out.w))
        auc = metrics.AUC.of(tf.sigmoid(logits[:, 0]), tf.cast(batch["label"] == 0, tf.int32))
        return Loss(losses.softmax_cross_entropy(logits, batch["label"]) + penalty, metrics={"auc": auc})


@correct()
class NamesKeptInPython(steps.Regression):
    """Constants, and objects made once, may live in Python."""

    evaluate = Task.evaluate
    names = ("x",)

    def make(self):
        super().make()
        self.scales = {"x": 0.5}
        self.table = None

    def loss(self, batch, rng):
        if self.table is None:
            self.table = np.arange(3)
        x = tf.add_n([self.scales[name] * batch[name] for name in self.names])
        return super().loss({**batch, "x": x}, rng)


@correct()
class PaddedSeries(steps.Forecaster):
    """Values with a mask; missing values' errors have weight zero."""

    @staticmethod
    def batch():
        mask = steps.sentences()["mask"]
        return {"values": steps.random(ROWS, TIME, 2) * mask[..., None], "mask": mask}

    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        return Loss(loss.per_example, weight=batch["mask"][:, 1:])


@correct()
class DecayEveryFourthStep(steps.Classifier):
    """A phase whose loss depends on the weights alone, the same for every row."""

    def phases(self):
        decay = Update("decay", loss=self.decay, trains=self.hidden, optimizer=sgd(0.1), every=4)
        return [*super().phases(), decay]

    def decay(self, batch, rng):
        return Loss(
            tf.fill([batch["x"].shape[0]], tf.add_n([tf.reduce_sum(v**2) for v in (self.hidden.w, self.hidden.b)]))
        )


@correct()
class LabelsForAMetric(steps.Autoencoder):
    """Learns without labels; evaluation measures the distance between classes."""

    @staticmethod
    def batch():
        return {**steps.images(), "label": steps.vectors()["label"]}

    def evaluate(self, batch):
        guess = self.encode(layers.flatten(batch["image"]))
        return self.loss(batch, None)._replace(metrics={"accuracy": metrics.accuracy(guess, batch["label"])})


@correct()
class SomeOutputsUnknown(steps.Regression):
    """Two outputs for each row; some rows' second is unknown."""

    @staticmethod
    def batch():
        known = np.array([[1, 1], [1, 0], [1, 1], [1, 0], [1, 0], [1, 1]], "float32")
        return {"x": steps.random(ROWS, 5), "y": steps.random(ROWS, 2), "known": known}

    def make(self):
        super().make()
        self.out = layers.Linear(SIZE, 2, rng=RNG.fold(1))

    def loss(self, batch, rng):
        guess = self.out(tf.nn.gelu(self.hidden(batch["x"])))
        return Loss(tf.reduce_sum(batch["known"] * tf.square(guess - batch["y"]), 1))


@correct()
class Mixup(steps.Classifier):
    """Zhang et al. (2018): random draws choose the mixed rows, so their order doesn't matter."""

    mixes_rows = True

    def loss(self, batch, rng):
        rows = batch["x"].shape[0]
        other = tf.argsort(rng.fold("other").uniform([rows]))
        share = rng.fold("share").rows.uniform(rows)
        x = share[:, None] * batch["x"] + (1.0 - share[:, None]) * tf.gather(batch["x"], other)
        logits = self.logits({"x": x})
        one = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(
            share * one + (1.0 - share) * losses.softmax_cross_entropy(logits, tf.gather(batch["label"], other))
        )

    evaluate = Task.evaluate


@correct()
class TermOfTheLastSteps(TwoHeads):
    """A head that is trained in the last fifth of a run."""

    def loss(self, batch, rng):
        h = tf.nn.relu(self.hidden(batch["x"]))
        late = tf.maximum(0.0, rng.progress - 0.8) * losses.squared_error(self.second(h)[:, 0], batch["y"])
        return Loss(losses.softmax_cross_entropy(self.out(h), batch["label"]) + late)

    evaluate = Task.evaluate


@correct()
class LogitsInALoop(steps.Classifier):
    """Row by row, with a branch in each: slow, but right."""

    def logits(self, batch, rng=None):
        def one(row):
            return tf.cond(row[0] > 0.0, lambda: tf.nn.tanh(row), lambda: tf.identity(row))

        return tf.map_fn(one, super().logits(batch, rng))
