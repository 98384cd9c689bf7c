"""A convolutional classifier of five layers, for the works that no model of Tapeloop's own fits."""

import itertools

import gin
import tensorflow as tf

from core import initializers, layers
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Image
from models.classifiers.task import Classifier

CHANNELS = (3, 32, 32, 64, 64, 128)
POOLED = (0, 2)  # the convolutions before a max pooling


class FiveLayers(Module):
    """Computes five 3×3 convolutions with ReLU, max pooling behind the first and the third, the mean, logits."""

    def __init__(self, *, rng: Rng):
        super().__init__()
        he = initializers.he_normal()
        self.convolutions = [
            layers.Conv2D(size, out_size, 3, rng=rng.fold(i), w_init=he)
            for i, (size, out_size) in enumerate(itertools.pairwise(CHANNELS))
        ]
        self.pool = layers.MaxPool(2)
        self.logits = layers.Linear(CHANNELS[-1], 10, rng=rng.fold("logits"))

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        for i, conv in enumerate(self.convolutions):
            x = tf.nn.relu(conv(x))
            if i in POOLED:
                x = self.pool(x)
        return self.logits(tf.reduce_mean(x, [1, 2]))


@gin.configurable
class FiveConvolutions(Classifier):
    """Classifies colour images of 32×32 pixels."""

    def __init__(self, *, rng: Rng, optimizer: Transform = gin.REQUIRED):
        super().__init__(FiveLayers(rng=rng), image=Image([32, 32, 3]), num_classes=10, optimizer=optimizer)
