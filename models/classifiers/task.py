"""The task that every classifier is: one network, one cross-entropy, one accuracy."""

import tensorflow as tf

from core import losses, metrics
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Label, Loss, Task, Update

ANY_IMAGE = Image()


class Classifier(Task):
    """Trains `net(image, rng) -> logits` on examples of `image` and `label`; images have any shape by default."""

    def __init__(self, net: Module, *, image: Image = ANY_IMAGE, num_classes: int, optimizer: Transform):
        super().__init__()
        self.net = net
        self.image, self.num_classes = image, num_classes
        self.optimizer = optimizer

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns cross-entropy and accuracy; `rng=None` is evaluation, without dropout."""
        logits = self.net(batch["image"], rng)
        cross_entropy = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(cross_entropy, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def reads(self) -> dict[str, Feature]:
        return {"image": self.image, "label": Label(self.num_classes)}


def flatten(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [rows, ...] as [rows, features]."""
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])
