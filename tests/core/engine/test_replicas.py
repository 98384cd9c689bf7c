"""Training gives the same numbers on 1, 2 and 4 replicas, in 1, 2 and 4 microbatches."""

import functools

import engine_lab
import numpy as np
import pytest
import tensorflow as tf
from engine_lab import assert_same

from core import layers
from core.distribution.ledger import GRADIENTS
from core.errors import ConfigurationError
from core.optimizers import adam, sgd
from core.task import Loss, Task, Update
from core.task.statistics import Statistics

ROWS = 32


class Ragged(Task):
    """Uneven weights, dropout and noise by row."""

    def __init__(self, *, rng):
        super().__init__()
        self.first = layers.Linear(5, 12, rng=rng.fold("first"))
        self.dropout = layers.Dropout(0.3)
        self.second = layers.Linear(12, 1, rng=rng.fold("second"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.05, momentum=0.9))]

    def loss(self, batch, rng):
        x = batch["x"] + 0.1 * rng.fold("noise").rows.normal(*batch["x"].shape)
        x = self.dropout(tf.nn.tanh(self.first(x)), rng.fold("dropout"))
        error = self.second(x)[:, 0] - batch["y"]
        return Loss(tf.square(error), weight=batch["weight"], metrics={"absolute": tf.abs(error)})


class Normalised(Task):
    """Batch normalisation over all replicas."""

    def __init__(self, *, rng):
        super().__init__()
        self.first = layers.Linear(5, 12, rng=rng.fold("first"))
        self.norm = layers.BatchNorm(12, sync=True, decay=0.9)
        self.second = layers.Linear(12, 1, rng=rng.fold("second"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.05), mixes_rows=True)]

    def loss(self, batch, rng):
        statistics = Statistics()
        x = tf.nn.tanh(self.norm(self.first(batch["x"]), statistics=statistics))
        error = self.second(x)[:, 0] - batch["y"]
        return Loss(tf.square(error), statistics=statistics, outputs={"error": error})


class Words(Task):
    """A table of vectors, of which a batch reads few."""

    def __init__(self, *, rng):
        super().__init__()
        self.table = layers.Embedding(2000, 3, rng=rng.fold("table"))
        self.head = layers.Linear(3, 1, rng=rng.fold("head"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=adam(0.01))]

    def loss(self, batch, rng):
        found = tf.reduce_mean(self.table(batch["words"]), 1)
        return Loss(tf.square(self.head(found)[:, 0] - batch["y"]), weight=batch["weight"])


def data():
    random = np.random.RandomState(0)
    return {
        "x": random.randn(ROWS, 5).astype("float32"),
        "y": random.randn(ROWS).astype("float32"),
        "words": random.randint(0, 2000, [ROWS, 7]),
        "weight": random.choice([0.0, 0.5, 1.0, 3.0], ROWS).astype("float32"),
    }


def train(task_class, replicas, microbatches, **settings):
    return engine_lab.train(task_class, data(), replicas, microbatches, **settings)


@functools.cache
def reference(task_class, microbatches):
    return train(task_class, 1, microbatches)


@pytest.mark.long
def test_compiled_replicas_agree():
    assert_same(train(Ragged, 2, 2, compile=True), reference(Ragged, 1))


@pytest.mark.long
def test_slices_are_sent_as_such():
    found = train(Words, 2, 2)
    assert_same(found, reference(Words, 1))
    (entry,) = found[1].exchange.ledger.collectives
    assert (entry.phase, entry.what) == ("net", GRADIENTS)
    touched = ROWS // 2 * 7
    assert entry.dtype == "float32 + int64"
    assert entry.bytes == touched * (3 * 4 + 8) + 4 * (3 + 1 + 2)  # the head's gradients, weight and loss


@pytest.mark.long
def test_a_narrower_type_halves_what_is_sent():
    wide, narrow = reference(Ragged, 1), train(Ragged, 2, 1, reduce_in=tf.bfloat16)
    (entry,) = narrow[1].exchange.ledger.of("net", GRADIENTS)
    parameters = sum(v.size for path, v in wide[0].variables.items() if not path.startswith("optimizer/"))
    assert (entry.dtype, entry.bytes) == ("bfloat16 + float32", 2 * parameters + 4 * 3)
    for path, value in wide[0].variables.items():
        np.testing.assert_allclose(narrow[0].variables[path], value, atol=0.05)


def test_a_synchronised_layer_must_be_declared():
    class Silent(Normalised):
        def phases(self):
            return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.05))]

    with pytest.raises(ConfigurationError, match="mixes_rows=True"):
        train(Silent, 1, 1)
