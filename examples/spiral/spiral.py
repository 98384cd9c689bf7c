"""Which of two spirals does a point lie on?"""

import gin
import numpy as np
import tensorflow as tf

from core import initializers, losses, metrics
from core.data import ArraySource
from core.module import Module
from core.task import Loss, Task, Update


class GatedBlock(Module):
    """x + (x a) * sigmoid(x b): a custom layer is a few variables and the maths."""

    def __init__(self, width, *, rng):
        super().__init__()
        init = initializers.lecun_normal()
        self.a = tf.Variable(init(rng.fold("a"), [width, width]), name="a")
        self.b = tf.Variable(init(rng.fold("b"), [width, width]), name="b")

    def __call__(self, x):
        a, b = (tf.cast(w, x.dtype) for w in (self.a, self.b))  # the dtype of `Trainer.precision`
        return x + (x @ a) * tf.sigmoid(x @ b)


class SpiralNet(Module):
    def __init__(self, width, *, rng):
        super().__init__()
        init = initializers.lecun_normal()
        self.frequencies = tf.Variable(rng.fold("frequencies").normal([2, width]), name="frequencies")
        self.blocks = [GatedBlock(width, rng=rng.fold(i)) for i in range(2)]
        self.w = tf.Variable(init(rng.fold("w"), [width, 2]), name="w")

    def __call__(self, x):
        x = tf.sin(x @ tf.cast(self.frequencies, x.dtype))
        for block in self.blocks:
            x = block(x)
        return x @ tf.cast(self.w, x.dtype)


@gin.configurable
class SpiralTask(Task):
    def __init__(self, *, rng, width=32, noise=0.02, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = SpiralNet(width, rng=rng)
        self.noise = noise
        self.optimizer = optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        x = batch["x"]
        if rng is not None:  # training: shifts each point a little; `rows` draws one row per example
            x += self.noise * rng.fold("noise").rows.normal(*x.shape)
        logits = self.net(x)
        per_example = losses.softmax_cross_entropy(logits, batch["y"])
        return Loss(per_example, metrics={"accuracy": metrics.accuracy(logits, batch["y"])})

    def evaluate(self, batch):
        return self.loss(batch, rng=None)


@gin.configurable
def spirals(count: int = 1000, seed: int = 0):
    random = np.random.RandomState(seed)
    y = np.arange(count) % 2
    turn = random.uniform(0.5, 3.0, count)
    angle = np.pi * (turn + y)
    x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1)
    return ArraySource({"x": x.astype("float32"), "y": y.astype("int32")}, name="spirals")
