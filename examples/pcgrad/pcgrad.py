"""Learns two properties of digits; where their gradients disagree, each gives way: PCGrad (Yu et al., 2020)."""

import gin
import tensorflow as tf

from core import layers, losses, metrics
from core.module import Module
from core.optimizers import Transform
from core.task import Loss, Task, Update


class Heads(Module):
    def __init__(self, width, *, rng):
        super().__init__()
        self.digit = layers.Linear(width, 10, rng=rng.fold("digit"))
        self.ink = layers.Linear(width, 1, rng=rng.fold("ink"))


@gin.configurable
class TwoLosses(Task):
    """Each loss has a copy of the shared layer, so that the step gives the gradient of each over the whole batch."""

    def __init__(self, *, rng, width=64, optimizer=gin.REQUIRED):
        super().__init__()
        self.one, self.other = (layers.Linear(64, width, rng=rng.fold("shared")) for _ in range(2))  # of equal numbers
        self.heads, self.optimizer = Heads(width, rng=rng), optimizer

    def phases(self):
        trains = [self.one, self.other, self.heads]
        return [Update("net", loss=self.loss, trains=trains, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        digit, ink = self.digit(batch, self.one), self.ink(batch, self.other)
        return Loss(digit + ink, metrics={"digit": digit, "ink": ink})

    def digit(self, batch, shared):
        return losses.softmax_cross_entropy(self.logits(batch, shared), batch["label"])

    def ink(self, batch, shared):
        """Returns squared errors of the mean level of each image."""
        error = self.heads.ink(features(batch, shared))[:, 0] - tf.reduce_mean(batch["image"], axis=[1, 2, 3])
        return (10.0 * tf.cast(error, tf.float32)) ** 2

    def logits(self, batch, shared):
        return self.heads.digit(features(batch, shared))

    def evaluate(self, batch):
        digit, ink = self.digit(batch, self.one), self.ink(batch, self.one)
        accuracy = metrics.accuracy(self.logits(batch, self.one), batch["label"])
        return Loss(digit + ink, metrics={"ink": ink, "accuracy": accuracy})


def features(batch, shared):
    return tf.nn.relu(shared(tf.reshape(batch["image"], [-1, 64])))


def projected(gradients, step):
    """Returns the sum of the rows of `gradients` [losses, n], each without what points against another one.

    A row g that has a negative product with another row h becomes g - (g·h / h·h) h, for each h in a random order.
    """
    count, total = gradients.shape[0], 0.0
    for i in range(count):
        g = gradients[i]
        for j in tf.unstack(tf.random.experimental.stateless_shuffle(tf.range(count), seed=[step, i]), count):
            h = gradients[j]
            product = tf.where(j == i, 0.0, tf.minimum(tf.reduce_sum(g * h), 0.0))
            g -= tf.math.divide_no_nan(product, tf.reduce_sum(h * h)) * h
        total += g
    return total


@gin.configurable
def pcgrad(inner, copies=2):
    """Updates parameters by `inner`; the first `copies` trained modules are one module, and get one update.

    Its gradient is the projected sum of theirs.
    """
    others = tuple(f"{i}/" for i in range(1, copies))

    def kept(tensors):
        return {path: x for path, x in tensors.items() if not path.startswith(others)}

    def update(gradients, state, params, *, step, value=None):
        shared = [path for path in params if path.startswith("0/")]
        flat = [tf.concat([tf.reshape(gradients[f"{i}{path[1:]}"], [-1]) for path in shared], 0) for i in range(copies)]
        parts = tf.split(projected(tf.stack(flat), step), [params[path].shape.num_elements() for path in shared])
        sums = {path: tf.reshape(x, params[path].shape) for path, x in zip(shared, parts, strict=True)}
        updates, state = inner.update({**kept(gradients), **sums}, state, kept(params), step=step, value=value)
        return {path: updates["0" + path[1:] if path.startswith(others) else path] for path in params}, state

    return Transform("pcgrad", lambda params: inner.init(kept(params)), update, rates=inner.rates)
