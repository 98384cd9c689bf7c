"""A digit's class from its pixels, with Tapeloop."""

import gin

from core import losses, metrics
from core.task import Loss, Task, Update
from models import Mlp


@gin.configurable
class Digits(Task):
    def __init__(self, *, rng, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = Mlp([64, 128, 10], rng=rng)
        self.optimizer = optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        logits = self.net(batch["image"])
        loss = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(loss, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})

    def evaluate(self, batch):
        return self.loss(batch, rng=None)
