"""Tasks with features that no shipped one has: ragged weights, and normalisation over all replicas."""

import numpy as np
import tensorflow as tf

from core import layers
from core.optimizers import adamw, sgd
from core.random import Rng
from core.task import Batch, Loss, Task, Update
from core.task.statistics import Statistics

TOKENS, SIZE, WIDTH = 5, 4, 12


class Ragged(Task):
    """Sequences of uneven length, some empty and some with more weight; dropout, and noise by row."""

    def __init__(self, *, rng: Rng):
        super().__init__()
        self.hidden = layers.Linear(SIZE, WIDTH, rng=rng.fold("hidden"))
        self.dropout = layers.Dropout(0.3)
        self.out = layers.Linear(WIDTH, 1, rng=rng.fold("out"))

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self, optimizer=adamw(0.01))]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        x = batch["x"] + 0.1 * rng.fold("noise").rows.normal(*batch["x"].shape)
        x = self.dropout(tf.nn.tanh(self.hidden(x)), rng.fold("dropout"))
        error = self.out(x)[..., 0] - batch["y"]
        return Loss(tf.square(error), weight=batch["weight"], metrics={"absolute": tf.abs(error)})


class Synchronised(Ragged):
    """The same task, normalised over the rows of all replicas."""

    def __init__(self, *, rng: Rng):
        super().__init__(rng=rng)
        self.norm = layers.BatchNorm(WIDTH, sync=True, decay=0.9)

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.05, momentum=0.9), mixes_rows=True)]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        statistics = Statistics()
        x = self.norm(tf.nn.tanh(self.hidden(batch["x"])), statistics=statistics)
        error = self.out(self.dropout(x, rng.fold("dropout")))[..., 0] - batch["y"]
        weight = batch["weight"]
        return Loss(tf.square(error), weight, metrics={"absolute": tf.abs(error)}, statistics=statistics)


def toy_batch(rows: int) -> dict[str, tf.Tensor]:
    """Returns a batch of sequences for both tasks."""
    random = np.random.RandomState(0)
    weight = random.choice([0.5, 1.0, 3.0], [rows, 1]) * (np.arange(TOKENS) < random.randint(0, TOKENS + 1, [rows, 1]))
    arrays = {"x": random.randn(rows, TOKENS, SIZE), "y": random.randn(rows, TOKENS), "weight": weight}
    return {name: tf.constant(x, tf.float32) for name, x in arrays.items()}
