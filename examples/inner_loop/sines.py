"""Learns how to learn a sine from five points: MAML (Finn, Abbeel and Levine, 2017), with gradients of gradients."""

import gin
import numpy as np
import tensorflow as tf

from core import layers
from core.data import ArraySource
from core.module import Module, with_values
from core.task import Loss, Task, Update


class Net(Module):
    def __init__(self, width, *, rng):
        super().__init__()
        self.first = layers.Linear(1, width, rng=rng.fold("first"))
        self.middle = layers.Linear(width, width, rng=rng.fold("middle"))
        self.last = layers.Linear(width, 1, rng=rng.fold("last"))

    def __call__(self, x):
        return self.last(tf.tanh(self.middle(tf.tanh(self.first(x)))))


def error(net, x, y):
    return tf.reduce_mean(tf.square(tf.cast(net(x) - y, tf.float32)))


@gin.configurable
class Maml(Task):
    """A row of the batch is a small data set: points to learn from, and points to predict."""

    def __init__(self, *, rng, width=32, inner_steps=1, inner_rate=0.1, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = Net(width, rng=rng)
        self.inner_steps, self.inner_rate, self.optimizer = inner_steps, inner_rate, optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def adapted(self, x, y):
        """Returns the network after some steps on these points, with tensors that gradients can flow through."""
        fast = {path: tf.convert_to_tensor(w) for path, w in self.net.parameters().items()}
        for _ in range(self.inner_steps):
            with tf.GradientTape() as tape:
                tape.watch(fast)
                loss = error(with_values(self.net, fast), x, y)
            gradients = tape.gradient(loss, fast)
            fast = {path: w - self.inner_rate * gradients[path] for path, w in fast.items()}
        return with_values(self.net, fast)

    def loss(self, batch, rng):
        def one(row):  # as if there were one row alone
            after = error(self.adapted(row["x"], row["y"]), row["query_x"], row["query_y"])
            return after, error(self.net, row["query_x"], row["query_y"])

        after, before = tf.vectorized_map(one, dict(batch), fallback_to_while_loop=False)
        return Loss(after, metrics={"unadapted": before})

    def evaluate(self, batch):
        return self.loss(batch, rng=None)


@gin.configurable
def sines(count: int = 4096, points: int = 5, queries: int = 10, seed: int = 0):
    random = np.random.RandomState(seed)
    amplitude, phase = random.uniform(0.5, 2.0, [count, 1, 1]), random.uniform(0.0, np.pi, [count, 1, 1])
    x = random.uniform(-3.0, 3.0, [count, points + queries, 1])
    x, y = x.astype("float32"), (amplitude * np.sin(x + phase)).astype("float32")
    features = {"x": x[:, :points], "y": y[:, :points], "query_x": x[:, points:], "query_y": y[:, points:]}
    return ArraySource(features, name="sines")
