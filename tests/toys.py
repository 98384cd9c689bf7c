"""Toy tasks, modules and sources that several test files share, as small as possible."""

import numpy as np
import tensorflow as tf

from core import layers
from core.data import ArraySource
from core.optimizers import Transform, sgd
from core.random import Rng
from core.task import Batch, Loss, Task, Update


class Line(Task):
    """Fits `y` with a linear layer of `x`, [rows, 3]. Subclasses change its optimizer, its loss or its phases."""

    optimizer: Transform = sgd(0.1)

    def __init__(self, *, rng: Rng):
        super().__init__()
        self.net = layers.Linear(3, 1, rng=rng.fold("net"))

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def error(self, batch: Batch) -> tf.Tensor:
        return self.net(batch["x"])[:, 0] - batch["y"]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        return Loss(tf.square(self.error(batch)))


class Pair(Task):
    """Trains two linear layers of `x`, [rows, 3], in two updates: towards one, and towards the first one's output."""

    optimizer: Transform = sgd(0.1)

    def __init__(self, *, rng: Rng):
        super().__init__()
        self.first, self.second = (layers.Linear(3, 1, rng=rng.fold(name)) for name in ("first", "second"))

    def phases(self) -> list[Update]:
        return [
            Update("first", loss=self.first_loss, trains=self.first, optimizer=self.optimizer),
            Update("second", loss=self.second_loss, trains=self.second, optimizer=self.optimizer),
        ]

    def first_loss(self, batch: Batch, rng: Rng) -> Loss:
        return Loss(tf.square(self.first(batch["x"])[:, 0] - 1.0))

    def second_loss(self, batch: Batch, rng: Rng) -> Loss:
        return Loss(tf.square(self.second(batch["x"])[:, 0] - tf.stop_gradient(self.first(batch["x"])[:, 0])))


def points(rows: int = 16, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns inputs and targets for these tasks: `x`, [rows, 3], and `y`, [rows]."""
    random = np.random.RandomState(seed)
    return {"x": random.randn(rows, 3).astype("float32"), "y": random.randn(rows).astype("float32")}


def point_source(rows: int = 16, *, seed: int = 0) -> ArraySource:
    """Returns a source of `points`."""
    return ArraySource(points(rows, seed=seed), name="points")
