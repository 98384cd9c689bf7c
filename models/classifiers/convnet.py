"""A small convolutional network like LeNet-5 (LeCun et al., 1998), with ReLU, max pooling and dropout."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_fraction
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Image
from models.classifiers.task import Classifier, flatten


class ConvNet(Module):
    """Two 3×3 convolutions and a max pooling for each of `channels`, then a hidden layer, and logits."""

    def __init__(
        self,
        image_shape: Sequence[int],
        *,
        channels: Sequence[int],
        hidden: int,
        num_classes: int,
        dropout: float,
        rng: Rng,
    ):
        super().__init__()
        check_fraction(dropout=dropout)
        height, width, in_channels = image_shape
        he = initializers.he_normal()
        self.convolutions = []
        for i, out_channels in enumerate(channels):
            for j, size in enumerate((in_channels, out_channels)):
                conv = layers.Conv2D(size, out_channels, 3, rng=rng.fold(f"conv_{i}_{j}"), w_init=he)
                self.convolutions.append(conv)
            in_channels = out_channels
            height, width = height // 2, width // 2
        self.hidden = layers.Linear(height * width * in_channels, hidden, rng=rng.fold("hidden"), w_init=he)
        self.logits = layers.Linear(hidden, num_classes, rng=rng.fold("logits"))
        self.pool = layers.MaxPool(2)
        self.dropout = layers.Dropout(dropout)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        for i, conv in enumerate(self.convolutions):
            x = conv(x)
            x = tf.nn.relu(self.pool(x) if i % 2 == 1 else x)  # after the pool: the same values, a quarter of the work
        x = self.dropout(flatten(x), rng and rng.fold("features"))
        x = self.dropout(tf.nn.relu(self.hidden(x)), rng and rng.fold("hidden"))
        return self.logits(x)


@gin.configurable
class ConvNetClassifier(Classifier):
    """Classifies images of `image_shape` (height, width, channels)."""

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        channels: Sequence[int] = (16, 32),
        hidden: int = 128,
        num_classes: int = 10,
        dropout: float = 0.0,
        optimizer: Transform = gin.REQUIRED,
    ):
        net = ConvNet(image_shape, channels=channels, hidden=hidden, num_classes=num_classes, dropout=dropout, rng=rng)
        super().__init__(net, image=Image(image_shape), num_classes=num_classes, optimizer=optimizer)
