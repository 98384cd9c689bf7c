"""A task with adjustable computation and gradient size, for benchmarks of several processes."""

import gin
import numpy as np
import tensorflow as tf

from benchmarks.running import WIDTH
from core.data import ArraySource
from core.optimizers import sgd
from core.random import Rng
from core.task import Batch, Loss, Task, Update


@gin.configurable
class Work(Task):
    """Multiplies its rows `products` times by one matrix; trains `ballast` further numbers that need no computation."""

    def __init__(self, *, rng: Rng, products: int = gin.REQUIRED, ballast: int = 0):
        super().__init__()
        self.products = products
        self.w = tf.Variable(rng.normal([WIDTH, WIDTH]) / np.sqrt(WIDTH), name="w")
        self.ballast = tf.Variable(tf.zeros([max(1, ballast)]), name="ballast")

    def phases(self) -> list[Update]:
        return [Update("work", loss=self.loss, trains=self, optimizer=sgd(1e-3))]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        x = batch["x"]
        for _ in range(self.products):
            x = tf.tanh(x @ self.w)
        return Loss(tf.reduce_mean(tf.square(x), 1) + tf.reduce_mean(self.ballast))


@gin.configurable
def random_rows() -> ArraySource:
    """Returns examples for `Work`."""
    return ArraySource({"x": np.random.RandomState(0).rand(1024, WIDTH).astype("float32")}, name="random rows")
