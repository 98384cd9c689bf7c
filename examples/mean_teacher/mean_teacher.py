"""Classifies digits of which few have labels: mean teacher (Tarvainen and Valpola, 2017)."""

import gin
import numpy as np
import tensorflow as tf

from core import layers, losses, metrics
from core.data import ArraySource, digits
from core.module import Module
from core.optimizers import averaged
from core.task import Loss, Statistics, Task, Update


class Net(Module):
    def __init__(self, width, *, rng):
        super().__init__()
        self.hidden = layers.Linear(64, width, rng=rng.fold("hidden"))
        self.norm = layers.BatchNorm(width, sync=True)
        self.dropout = layers.Dropout(0.3)
        self.out = layers.Linear(width, 10, rng=rng.fold("out"))

    def __call__(self, x, rng=None, statistics=None):
        x = tf.nn.relu(self.norm(self.hidden(x), statistics=statistics))
        return self.out(self.dropout(x, rng))


@gin.configurable
class MeanTeacher(Task):
    """The student learns the labels, and the teacher's answers to other noise; the teacher is its average."""

    def __init__(self, *, rng, width=64, noise=0.2, consistency=0.1, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = Net(width, rng=rng)
        self.noise, self.consistency, self.optimizer = noise, consistency, optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer, mixes_rows=True)]

    def loss(self, batch, rng):
        x, statistics = tf.reshape(batch["image"], [-1, 64]), Statistics()
        seen = [x + self.noise * rng.fold(name).rows.normal(*x.shape) for name in ("student", "teacher")]
        logits = self.net(seen[0], rng.fold("dropout"), statistics)
        target = tf.nn.softmax(averaged(self.net)(seen[1]))  # without `rng` and `statistics`: as in evaluation
        distance = losses.kl_divergence(logits, target)
        labelled = losses.softmax_cross_entropy(logits, batch["label"]) * tf.cast(batch["has_label"], tf.float32)
        return Loss(labelled + self.consistency * distance, metrics={"distance": distance}, statistics=statistics)

    def evaluate(self, batch):
        logits = self.net(tf.reshape(batch["image"], [-1, 64]))
        per_example = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(per_example, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})


@gin.configurable
def few_labels(labelled: int = 50):
    """Returns the training digits, of which the first `labelled` have `has_label` = 1 and the others 0."""
    source = digits()
    features = {key: x.numpy() for key, x in source.gather(tf.range(len(source), dtype=tf.int64)).items()}
    return ArraySource({**features, "has_label": np.float32(np.arange(len(source)) < labelled)}, name="few_labels")
