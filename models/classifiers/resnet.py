"""Residual networks (He, Zhang, Ren and Sun, 2016): blocks y = relu(shortcut(x) + f(x)) in four stages.

In depths 18 and 34, f is two 3×3 convolutions. From depth 50 on, it is a bottleneck: convolutions of 1×1, 3×3 and 1×1,
the last with four times the channels. A norm follows each convolution. The first block of stages 2 to 4 halves the
image and doubles the channels. A bottleneck halves it in the 3×3 convolution, as in PyTorch; the paper's first 1×1
convolution would skip three quarters of the pixels.
"""

import math
from collections.abc import Sequence
from typing import Literal

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_choice, check_size
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Image
from core.task.statistics import Statistics
from models.classifiers.task import Augment, Classifier, Mix

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # of each stage
BOTTLENECK = 50  # the least depth whose blocks are bottlenecks
EPSILON = 1e-5

Norm = Literal["batch", "group"]
Stem = Literal["imagenet", "cifar"]


class ConvNorm(Module):
    """A convolution, padded equally on all sides, and a norm. The norm's offset takes the place of a bias."""

    def __init__(self, in_channels: int, out_channels: int, size: int, *, stride: int = 1, norm: Norm, rng: Rng):
        super().__init__()
        he = initializers.variance_scaling(2.0, "fan_out")
        self.conv = layers.Conv2D(
            in_channels, out_channels, size, stride=stride, padding=size // 2 or "VALID", bias=False, w_init=he, rng=rng
        )
        self.norm: Module
        if norm == "batch":
            self.norm = layers.BatchNorm(out_channels, decay=0.9, epsilon=EPSILON, sync=True)
        else:
            # At most 32 groups, as in the paper, of two channels or more.
            self.norm = layers.GroupNorm(out_channels, math.gcd(out_channels // 2 or 1, 32), epsilon=EPSILON)

    def __call__(self, x: tf.Tensor, *, statistics: Statistics | None = None) -> tf.Tensor:
        y = self.conv(x)
        return self.norm(y, statistics=statistics) if isinstance(self.norm, layers.BatchNorm) else self.norm(y)


class ResidualBlock(Module):
    """Returns `relu(shortcut(x) + f(x))`. If shapes differ, the shortcut is a 1×1 convolution, else it is `x`."""

    def __init__(self, in_channels: int, width: int, *, bottleneck: bool, stride: int, norm: Norm, rng: Rng):
        super().__init__()
        self.out_channels = 4 * width if bottleneck else width
        convs = [(width, 3, stride), (width, 3, 1)]
        if bottleneck:
            convs = [(width, 1, 1), (width, 3, stride), (self.out_channels, 1, 1)]
        self.convs, size = [], in_channels
        for i, (out_size, window, step) in enumerate(convs):
            self.convs.append(ConvNorm(size, out_size, window, stride=step, norm=norm, rng=rng.fold(i)))
            size = out_size
        self.shortcut = None
        if stride > 1 or in_channels != size:
            self.shortcut = ConvNorm(in_channels, size, 1, stride=stride, norm=norm, rng=rng.fold("shortcut"))

    def __call__(self, x: tf.Tensor, *, statistics: Statistics | None = None) -> tf.Tensor:
        y = x
        for conv in self.convs[:-1]:
            y = tf.nn.relu(conv(y, statistics=statistics))
        y = self.convs[-1](y, statistics=statistics)
        return tf.nn.relu(y + (x if self.shortcut is None else self.shortcut(x, statistics=statistics)))


class ResNet(Module):
    """Maps images [rows, height, width, in_channels] to logits [rows, num_classes].

    `width` is the number of channels of the first stage. The stem of `"imagenet"` quarters the image: a 7×7 convolution
    and a max pooling, each with a stride of 2. The stem of `"cifar"`, for small images, is one 3×3 convolution. `norm`
    is `"batch"`, over the rows of all replicas, or `"group"`, of up to 32 groups of channels (Wu and He, 2018), which
    leaves rows independent.
    """

    def __init__(
        self,
        depth: int,
        *,
        in_channels: int = 3,
        num_classes: int,
        width: int = 64,
        stem: Stem = "imagenet",
        norm: Norm = "batch",
        rng: Rng,
    ):
        super().__init__()
        check_choice("depth", depth, tuple(BLOCKS))
        check_choice("stem", stem, ("imagenet", "cifar"))
        check_choice("norm", norm, ("batch", "group"))
        check_size(in_channels=in_channels, num_classes=num_classes, width=width)
        self.pool = None
        if stem == "imagenet":
            self.stem = ConvNorm(in_channels, width, 7, stride=2, norm=norm, rng=rng.fold("stem"))
            self.pool = layers.MaxPool(3, stride=2, padding=1)
        else:
            self.stem = ConvNorm(in_channels, width, 3, norm=norm, rng=rng.fold("stem"))
        self.stages: list[list[ResidualBlock]] = []
        channels = width
        for i, count in enumerate(BLOCKS[depth]):
            self.stages.append([])
            for j in range(count):
                block = ResidualBlock(
                    channels,
                    width * 2**i,
                    bottleneck=depth >= BOTTLENECK,
                    stride=2 if i > 0 and j == 0 else 1,
                    norm=norm,
                    rng=rng.fold(f"block_{i}_{j}"),
                )
                self.stages[-1].append(block)
                channels = block.out_channels
        self.logits = layers.Linear(channels, num_classes, rng=rng.fold("logits"))

    def __call__(self, x: tf.Tensor, rng: Rng | None = None, *, statistics: Statistics | None = None) -> tf.Tensor:
        x = tf.nn.relu(self.stem(x, statistics=statistics))
        if self.pool is not None:
            x = self.pool(x)
        for stage in self.stages:
            for block in stage:
                x = block(x, statistics=statistics)
        return self.logits(layers.global_average_pool(x))


@gin.configurable
class ResNetClassifier(Classifier):
    """Classifies images of `image_shape` (height, width, channels) with a `ResNet` of depth 18, 34, 50, 101 or 152."""

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        depth: int = gin.REQUIRED,
        width: int = 64,
        stem: Stem = "imagenet",
        norm: Norm = "batch",
        num_classes: int = 10,
        augment: Sequence[Augment] = (),
        mix: Mix | None = None,
        optimizer: Transform = gin.REQUIRED,
    ):
        net = ResNet(
            depth, in_channels=image_shape[-1], num_classes=num_classes, width=width, stem=stem, norm=norm, rng=rng
        )
        image = Image(image_shape)
        super().__init__(net, image=image, num_classes=num_classes, augment=augment, mix=mix, optimizer=optimizer)
