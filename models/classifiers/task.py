"""The classifiers' task: one network, one cross-entropy, one accuracy."""

from collections.abc import Mapping

import tensorflow as tf

from core import losses, metrics
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Label, Loss, Served, Task, Update

ANY_IMAGE = Image()


class Classifier(Task):
    """Trains `net(image, rng) -> logits` on the features `image` and `label`; by default, images may have any shape."""

    def __init__(self, net: Module, *, image: Image = ANY_IMAGE, num_classes: int, optimizer: Transform):
        super().__init__()
        self.net = net
        self.image, self.num_classes = image, num_classes
        self.optimizer = optimizer

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns cross-entropy and accuracy per example. `rng=None` means evaluation, without dropout."""
        logits = self.net(batch["image"], rng)
        cross_entropy = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(cross_entropy, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def reads(self) -> dict[str, Feature]:
        return {"image": self.image, "label": Label(self.num_classes)}

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        scores = ["logits", "probabilities"]
        return {"classify": Served(self.classify, {"image": features["image"]}, scores=scores)}

    def classify(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `{"logits": [rows, classes], "probabilities": [rows, classes]}`."""
        logits = self.net(batch["image"])
        return {"logits": logits, "probabilities": tf.nn.softmax(tf.cast(logits, tf.float32))}


def flatten(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [rows, ...] as [rows, features]."""
    x = tf.convert_to_tensor(x)
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])
