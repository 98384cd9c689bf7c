"""Learns features of digits without labels and without negatives: BYOL (Grill et al., 2020)."""

import gin
import tensorflow as tf

from core import initializers, layers
from core.data import random_affine
from core.module import Module
from core.optimizers import averaged
from core.task import Loss, Statistics, Task, Update, all_rows


class Head(Module):
    """A projection or a prediction: two layers with a BatchNorm between them."""

    def __init__(self, in_size, hidden, size, *, rng):
        super().__init__()
        self.hidden = layers.Linear(in_size, hidden, rng=rng.fold("hidden"))
        self.norm = layers.BatchNorm(hidden, sync=True)
        self.out = layers.Linear(hidden, size, rng=rng.fold("out"))

    def __call__(self, x, statistics=None):
        return self.out(tf.nn.relu(self.norm(self.hidden(x), statistics=statistics)))


class Network(Module):
    """An encoder of images, and a projection of its features. The target is its moving average."""

    def __init__(self, channels, size, *, rng):
        super().__init__()
        he, widths = initializers.he_normal(), [1, *channels]
        self.convolutions = [
            layers.Conv2D(before, after, 3, stride=1 if i == 0 else 2, rng=rng.fold(i), w_init=he)
            for i, (before, after) in enumerate(zip(widths, channels, strict=False))
        ]
        self.norms = [layers.BatchNorm(width, sync=True) for width in channels]
        self.projection = Head(channels[-1], 2 * size, size, rng=rng.fold("projection"))

    def features(self, x, statistics=None):
        for conv, norm in zip(self.convolutions, self.norms, strict=True):
            x = tf.nn.relu(norm(conv(x), statistics=statistics))
        return layers.global_average_pool(x)

    def __call__(self, x, statistics=None):
        return self.projection(self.features(x, statistics), statistics)


@gin.configurable
class Byol(Task):
    """The online network predicts, from one view of an image, what its average projects of another view."""

    def __init__(self, *, rng, channels=(32, 64, 128), size=64, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = Network(channels, size, rng=rng.fold("net"))
        self.prediction = Head(size, 2 * size, size, rng=rng.fold("prediction"))
        self.optimizer = optimizer

    def phases(self):
        trains = [self.net, self.prediction]
        return [Update("net", loss=self.loss, trains=trains, optimizer=self.optimizer, mixes_rows=True)]

    def loss(self, batch, rng):
        """Returns the squared distances of unit vectors, of each view to the other one."""
        statistics, both = Statistics(), tf.concat(views(batch["image"], rng), axis=0)
        predicted = tf.split(self.prediction(self.net(both, statistics), statistics), 2)
        target = tf.split(tf.stop_gradient(averaged(self.net)(both)), 2)
        distances = [distance(a, b) for a, b in zip(predicted, reversed(target), strict=True)]
        return Loss(tf.add_n(distances), metrics={"spread": spread(target[0])}, statistics=statistics)

    def evaluate(self, batch):
        """Returns the distance of the prediction for an image to its own projection."""
        projected = self.net(batch["image"])
        return Loss(distance(self.prediction(projected), projected), metrics={"spread": spread(projected)})

    def features(self, batch):
        """Returns the encoder's features [rows, size], for the hook `LinearProbe`."""
        return self.net.features(batch["image"])


def views(image, rng):
    return [
        random_affine(image, rng.fold(name), turn=0.45, shear=0.4, scale=1.3, shift=1.0) for name in ("one", "other")
    ]


def distance(one, other):
    one, other = (tf.math.l2_normalize(tf.cast(x, tf.float32), axis=-1) for x in (one, other))
    return 2.0 - 2.0 * tf.reduce_sum(one * other, axis=-1)


def spread(projected):
    """Returns by row the squared distance of the unit vectors to their sum: 0 where all images collapse to one."""
    unit = tf.math.l2_normalize(tf.cast(projected, tf.float32), axis=-1)
    return 1.0 - tf.reduce_sum(unit * tf.reduce_mean(all_rows(unit), axis=0), axis=-1)
