"""What the classifiers share: one network, one cross-entropy, one accuracy."""

import tensorflow as tf

from core import losses, metrics
from core.data import Source, check_feature
from core.errors import DataError
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Loss, Task, Update


class Classifier(Task):
    """Trains `net(image, rng) -> logits` on examples of `image` and `label`."""

    def __init__(self, net: Module, *, num_classes: int, optimizer: Transform):
        super().__init__()
        self.net = net
        self.num_classes = num_classes
        self.optimizer = optimizer

    def phases(self) -> list[Update]:
        """One update of the whole network."""
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Cross-entropy and accuracy per example; `rng=None` is evaluation."""
        logits = self.net(batch["image"], rng)
        cross_entropy = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(cross_entropy, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})

    def evaluate(self, batch: Batch) -> Loss:
        """The same figures without dropout."""
        return self.loss(batch, rng=None)

    def check_source(self, source: Source) -> None:
        """Examples have an image and a label, and each label names a class."""
        for feature in ("image", "label"):
            check_feature(source, feature)
        extremes = source.extremes("label")
        if extremes is None:
            return
        smallest, first, largest, last = extremes
        for label, example in ((smallest, first), (largest, last)):
            if not 0 <= label < self.num_classes:
                raise DataError(
                    f"`label` of example {example} of source `{source.name}` is {label}, but `{type(self).__name__}` "
                    f"has {self.num_classes} classes, numbered 0 to {self.num_classes - 1}: renumber the labels, or "
                    "give the network more outputs."
                )


def flatten(x: tf.Tensor) -> tf.Tensor:
    """`[rows, ...]` as `[rows, features]`."""
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])
