"""The classifiers' task: one network, one cross-entropy, one accuracy."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from core import layers, losses, metrics
from core.arguments import check_fraction
from core.layers.calls import arguments_of, call
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Label, Loss, Served, Task, Update
from core.task.statistics import Statistics

Augment = Callable[[tf.Tensor, Rng], tf.Tensor]  # changes images [rows, height, width, channels] at random
# Mixes images and labels [rows, classes] with those of other rows at random.
Mix = Callable[[tf.Tensor, tf.Tensor, Rng], tuple[tf.Tensor, tf.Tensor]]

ANY_IMAGE = Image()


class Classifier(Task):
    """Trains `net(image, rng) -> logits` on the features `image` and `label`; by default, images may have any shape.

    A `net` with `BatchNorm` layers also takes `statistics`. In training alone, the functions `augment` change the
    images, `mix` mixes images and their labels, and `label_smoothing` changes the targets.
    """

    def __init__(
        self,
        net: Module,
        *,
        image: Image = ANY_IMAGE,
        num_classes: int,
        augment: Sequence[Augment] = (),
        mix: Mix | None = None,
        label_smoothing: float = 0.0,
        optimizer: Transform,
    ):
        super().__init__()
        check_fraction(label_smoothing=label_smoothing)
        self.net, self.label_smoothing = net, label_smoothing
        self.image, self.num_classes = image, num_classes
        self.augment, self.mix = tuple(augment), mix
        self.optimizer = optimizer
        self.by_batch = any(isinstance(part, layers.BatchNorm) for part in net.submodules)

    def phases(self) -> list[Update]:
        update = Update(
            "net",
            loss=self.loss,
            trains=self.net,
            optimizer=self.optimizer,
            mixes_rows=self.by_batch or self.mix is not None,
            sampled_loss=self.sampled_loss,
        )
        return [update]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns cross-entropy and accuracy per example. `rng=None` means evaluation, without dropout."""
        logits, target, statistics = self._logits(batch, rng)
        smoothing = 0.0 if rng is None else self.label_smoothing
        cross_entropy = losses.softmax_cross_entropy(logits, target, label_smoothing=smoothing)
        metric = {"accuracy": metrics.accuracy(logits, batch["label"])}
        return Loss(cross_entropy, metrics=metric, statistics=statistics)

    def sampled_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the cross-entropy of labels drawn from the network's own probabilities."""
        logits, _, _ = self._logits(batch, rng)
        return Loss(losses.softmax_cross_entropy(logits, rng.fold("labels").rows.categorical(logits)))

    def _logits(self, batch: Batch, rng: Rng | None) -> tuple[tf.Tensor, tf.Tensor, Statistics | None]:
        """Returns logits, and the labels that the loss compares with them: of mixed images, [rows, classes]."""
        image, target = batch["image"], batch["label"]
        if rng is None:
            return self.evaluated(image), target, None
        for i, function in enumerate(self.augment):
            image = function(image, rng.fold("augment").fold(i))
        if self.mix is not None:
            image, target = self.mix(image, tf.one_hot(target, self.num_classes), rng.fold("mix"))
        statistics = Statistics() if self.by_batch else None
        return call(self.net, arguments_of(self.net), image, rng=rng, statistics=statistics), target, statistics

    def evaluated(self, image: tf.Tensor) -> tf.Tensor:
        """Returns the logits of images outside training."""
        return call(self.net, arguments_of(self.net), image, rng=None, statistics=None)

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def reads(self) -> dict[str, Feature]:
        return {"image": self.image, "label": Label(self.num_classes)}

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        scores = ["logits", "probabilities"]
        return {"classify": Served(self.classify, {"image": features["image"]}, scores=scores)}

    def classify(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `{"logits": [rows, classes], "probabilities": [rows, classes]}`."""
        logits = self.evaluated(batch["image"])
        return {"logits": logits, "probabilities": tf.nn.softmax(tf.cast(logits, tf.float32))}


def flatten(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [rows, ...] as [rows, features]."""
    x = tf.convert_to_tensor(x)
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])
