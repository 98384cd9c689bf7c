"""Correct steps of the usual kinds, in one long file: each mistake changes a few of their lines."""

import numpy as np
import tensorflow as tf

from core import layers, losses, metrics
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Loss, Statistics, Task, Update

ROWS, TIME, WORDS, SIZE, CLASSES = 6, 7, 9, 8, 3
LENGTHS = np.array([6, 3, 5, 4, 6, 3])  # of 7: the last position is padding in all rows
RNG = Rng.from_seed(3)


def random(*shape):
    return np.random.RandomState(len(shape)).standard_normal(shape).astype("float32")


def integers(high, *shape):
    return np.random.RandomState(7).randint(0, high, shape).astype("int32")


def vectors():
    return {"x": random(ROWS, 5), "label": np.array([0, 1, 2, 2, 1, 0], "int32")}


def weighted():
    return {"x": random(ROWS, 5), "y": random(ROWS), "weight": np.array([1, 2, 0, 1, 0.5, 0], "float32")}


def sentences():
    """Returns tokens of which 0 is padding."""
    mask = (np.arange(TIME) < LENGTHS[:, None]).astype("float32")
    return {"tokens": (1 + integers(WORDS - 1, ROWS, TIME)) * mask.astype("int32"), "mask": mask}


def labelled():
    return {**sentences(), "label": vectors()["label"]}


def tagged():
    return {**sentences(), "tags": integers(CLASSES, ROWS, TIME)}


def text():
    return {"tokens": integers(WORDS, ROWS, TIME)}


def series():
    return {"values": random(ROWS, TIME, 2)}


def images():
    return {"image": np.random.RandomState(0).uniform(size=(ROWS, 4, 4, 1)).astype("float32")}


def views():
    return {"one": random(ROWS, 5), "other": random(ROWS, 5) + random(ROWS, 1)}


class One(Task):
    """One network, one update."""

    mixes_rows = False

    def __init__(self):
        super().__init__()
        self.make()

    def make(self):
        raise NotImplementedError

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.1), mixes_rows=self.mixes_rows)]


class Classifier(One):
    batch = staticmethod(vectors)

    def make(self):
        self.hidden, self.out = layers.Linear(5, SIZE, rng=RNG.fold(0)), layers.Linear(SIZE, CLASSES, rng=RNG.fold(1))

    def logits(self, batch, rng=None):
        return self.out(tf.nn.tanh(self.hidden(batch["x"])))

    def loss(self, batch, rng):
        logits = self.logits(batch, rng)
        per_example = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(per_example, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})

    def evaluate(self, batch):
        return self.loss(batch, None)


class Dropping(Classifier):
    """With dropout and noise."""

    def make(self):
        super().make()
        self.dropout = layers.Dropout(0.3)

    def logits(self, batch, rng=None):
        x = batch["x"]
        if rng is not None:
            x += 0.1 * rng.fold("noise").rows.normal(*x.shape)
        return self.out(self.dropout(tf.nn.tanh(self.hidden(x)), rng and rng.fold("dropout")))


class Normalised(Classifier):
    mixes_rows = True

    def make(self):
        super().make()
        self.norm = layers.BatchNorm(SIZE, sync=True)

    def logits(self, batch, rng=None, statistics=None):
        return self.out(tf.nn.relu(self.norm(self.hidden(batch["x"]), statistics=statistics)))

    def loss(self, batch, rng):
        statistics = Statistics()
        logits = self.logits(batch, rng, statistics)
        return Loss(losses.softmax_cross_entropy(logits, batch["label"]), statistics=statistics)

    def evaluate(self, batch):
        return Loss(losses.softmax_cross_entropy(self.logits(batch), batch["label"]))


class Regression(One):
    batch = staticmethod(weighted)

    def make(self):
        self.hidden, self.out = layers.Linear(5, SIZE, rng=RNG.fold(0)), layers.Linear(SIZE, 1, rng=RNG.fold(1))

    def predict(self, batch):
        return self.out(tf.nn.gelu(self.hidden(batch["x"])))[:, 0]

    def loss(self, batch, rng):
        return Loss(tf.square(self.predict(batch) - batch["y"]), weight=batch["weight"])

    def evaluate(self, batch):
        return self.loss(batch, None)


class LanguageModel(One):
    """Attention to the past; each token predicts the next."""

    batch = staticmethod(text)

    def make(self):
        self.words = layers.Embedding(WORDS, SIZE, rng=RNG.fold(0))
        self.attention = layers.MultiHeadAttention(SIZE, 2, rng=RNG.fold(1), causal=True, rotary_base=10000.0)
        self.out = layers.Linear(SIZE, WORDS, rng=RNG.fold(2))

    def logits(self, tokens, mask=None):
        x = self.words(tokens)
        return self.out(x + self.attention(x, mask=mask))

    def loss(self, batch, rng):
        tokens = batch["tokens"]
        per_token = losses.softmax_cross_entropy(self.logits(tokens[:, :-1]), tokens[:, 1:])
        return Loss(per_token, weight=tf.ones_like(per_token))


class PaddedLanguageModel(LanguageModel):
    batch = staticmethod(sentences)

    def loss(self, batch, rng):
        tokens, mask = batch["tokens"], batch["mask"]
        per_token = losses.softmax_cross_entropy(self.logits(tokens[:, :-1]), tokens[:, 1:])
        return Loss(per_token, weight=mask[:, 1:])


class SentenceClassifier(One):
    """Attends in both directions, averages over real tokens."""

    batch = staticmethod(labelled)

    def make(self):
        self.words = layers.Embedding(WORDS, SIZE, rng=RNG.fold(0))
        self.attention = layers.MultiHeadAttention(SIZE, 2, rng=RNG.fold(1))
        self.out = layers.Linear(SIZE, CLASSES, rng=RNG.fold(2))

    def pool(self, x, mask):
        mask = mask[..., tf.newaxis]
        return tf.reduce_sum(x * mask, 1) / tf.reduce_sum(mask, 1)

    def features(self, batch):
        x = self.words(batch["tokens"])
        x += self.attention(x, mask=tf.cast(batch["mask"], tf.bool))
        return self.pool(x, batch["mask"])

    def loss(self, batch, rng):
        return Loss(losses.softmax_cross_entropy(self.out(self.features(batch)), batch["label"]))


class Tagger(SentenceClassifier):
    """One class for each token."""

    batch = staticmethod(tagged)

    def per_token(self, batch):
        x = self.words(batch["tokens"])
        x += self.attention(x, mask=tf.cast(batch["mask"], tf.bool))
        return losses.softmax_cross_entropy(self.out(x), batch["tags"])

    def loss(self, batch, rng):
        return Loss(self.per_token(batch), weight=batch["mask"])


class Forecaster(One):
    """A recurrent network that predicts the next values."""

    batch = staticmethod(series)

    def make(self):
        self.cell = layers.GRU(2, SIZE, rng=RNG.fold(0))
        self.out = layers.Linear(SIZE, 2, rng=RNG.fold(1))

    def predict(self, values):
        outputs, _ = layers.unroll(self.cell, values)
        return self.out(outputs)

    def loss(self, batch, rng):
        values = batch["values"]
        error = tf.reduce_sum(tf.square(self.predict(values[:, :-1]) - values[:, 1:]), -1)
        return Loss(error, weight=tf.ones_like(error))


class Autoencoder(One):
    batch = staticmethod(images)

    def make(self):
        self.encoder, self.decoder = layers.Linear(16, 4, rng=RNG.fold(0)), layers.Linear(4, 16, rng=RNG.fold(1))

    def encode(self, x):
        return tf.nn.tanh(self.encoder(x))

    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        return Loss(tf.reduce_mean(tf.square(self.decoder(self.encode(x)) - x), -1))

    def evaluate(self, batch):
        return self.loss(batch, None)


class Variational(Autoencoder):
    """Kingma and Welling (2014)."""

    def make(self):
        super().make()
        self.spread = layers.Linear(16, 4, rng=RNG.fold(2))

    def loss(self, batch, rng):
        x = layers.flatten(batch["image"])
        mean, log_scale = self.encoder(x), self.spread(x)
        noise = 0.0 if rng is None else rng.rows.normal(*mean.shape)
        z = mean + tf.exp(log_scale) * noise
        error = tf.reduce_sum(tf.square(self.decoder(z) - x), -1)
        divergence = tf.reduce_sum(0.5 * (tf.square(mean) + tf.exp(2.0 * log_scale) - 1.0) - log_scale, -1)
        return Loss(error + divergence, metrics={"divergence": divergence})


class Contrast(One):
    mixes_rows = True
    batch = staticmethod(views)

    def make(self):
        self.net = layers.Linear(5, SIZE, rng=RNG.fold(0))
        self.head = layers.Linear(SIZE, 4, rng=RNG.fold(1))

    def embed(self, x):
        return self.head(tf.nn.tanh(self.net(x)))

    def loss(self, batch, rng):
        return Loss(losses.info_nce(self.embed(batch["one"]), self.embed(batch["other"]), temperature=0.5))


class Adversarial(Task):
    """Two networks, each trained against the other."""

    batch = staticmethod(images)

    def __init__(self):
        super().__init__()
        self.g = layers.Linear(3, 16, rng=RNG.fold(0))
        self.d = layers.Sequential([layers.Linear(16, SIZE, rng=RNG.fold(1)), tf.nn.tanh,
                                    layers.Linear(SIZE, 1, rng=RNG.fold(2))])  # fmt: skip

    def phases(self):
        return [
            Compute("sample", self.sample_fakes),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.1)),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=sgd(0.1), through="sample"),
        ]

    def sample_fakes(self, batch, rng):
        return {"fake": tf.sigmoid(self.g(rng.rows.normal(batch["image"].shape[0], 3)))}

    def d_loss(self, batch, rng):
        real, fake = self.d(layers.flatten(batch["image"])), self.d(batch["fake"])
        return Loss((tf.nn.softplus(-real) + tf.nn.softplus(fake))[:, 0])

    def g_loss(self, batch, rng):
        return Loss(tf.nn.softplus(-self.d(batch["fake"]))[:, 0])
