"""A GAN that learns eight points on a ring: two networks, two updates, and nothing hidden."""

import gin
import numpy as np
import tensorflow as tf

from core.data import ArraySource
from core.losses.adversarial import non_saturating
from core.task import Compute, Loss, Task, Update
from models import Mlp

TURNS = 2 * np.pi * np.arange(8) / 8
POINTS = np.stack([np.cos(TURNS), np.sin(TURNS)], axis=1).astype(np.float32)
GAME = non_saturating()


@gin.configurable
class RingGan(Task):
    def __init__(self, *, rng, width=64, g_optimizer=gin.REQUIRED, d_optimizer=gin.REQUIRED):
        super().__init__()
        self.g = Mlp([8, width, width, 2], rng=rng.fold("g"))
        self.d = Mlp([2, width, width, 1], rng=rng.fold("d"))
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer

    def phases(self):
        return [
            Compute("sample", self.fakes),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=self.d_optimizer),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=self.g_optimizer, through="sample"),
        ]

    def fakes(self, batch, rng):
        return {"fake": self.g(rng.rows.normal(batch["x"].shape[0], 8))}  # a row of noise for each row of the batch

    def d_loss(self, batch, rng):
        real, fake = self.d(batch["x"])[:, 0], self.d(batch["fake"])[:, 0]
        return Loss(GAME.discriminator(real, fake), metrics=GAME.accuracy(real, fake))

    def g_loss(self, batch, rng):
        return Loss(GAME.generator(self.d(batch["fake"])[:, 0]))

    def evaluate(self, batch):  # makes a fake from each example's noise: how far is it from a point?
        fake = tf.cast(self.g(batch["noise"]), tf.float32)
        distances = tf.norm(fake[:, None] - POINTS, axis=2)
        return Loss(tf.reduce_min(distances, axis=1))


@gin.configurable
def ring(count=4096, seed=0):
    random = np.random.RandomState(seed)
    x = POINTS[np.arange(count) % 8] + 0.02 * random.normal(size=[count, 2])
    return ArraySource({"x": x, "noise": random.normal(size=[count, 8])}, name="ring")
