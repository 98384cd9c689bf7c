"""ConvNeXt (Liu et al., 2022): a residual network in the shape of a vision transformer.

A block is x + scale * f(x). Here f is a 7×7 convolution of each channel by itself, a norm of each pixel's channels, and
a feed-forward network of each pixel with the exact GELU. `scale`, learned per channel, starts near zero. A norm and a
2×2 convolution halve the image between stages.
"""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_fraction, check_size
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Image
from models.classifiers.task import Augment, Classifier, Mix

EPSILON = 1e-6
SCALE = 1e-6  # of each block's output, at the start
MATRIX = initializers.truncated_normal(0.02)


class ConvNeXtBlock(Module):
    """Returns `x + scale * down(gelu(up(norm(conv(x)))))`."""

    def __init__(self, channels: int, *, drop_path: float, rng: Rng):
        super().__init__()
        self.conv = layers.DepthwiseConv2D(channels, 7, rng=rng.fold("conv"), w_init=MATRIX)
        self.norm = layers.LayerNorm(channels, epsilon=EPSILON)
        self.up = layers.Linear(channels, 4 * channels, rng=rng.fold("up"), w_init=MATRIX)
        self.down = layers.Linear(4 * channels, channels, rng=rng.fold("down"), w_init=MATRIX)
        self.scale = tf.Variable(tf.fill([channels], SCALE), name="scale")
        self.drop_path = layers.StochasticDepth(drop_path)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        y = self.down(tf.nn.gelu(self.up(self.norm(self.conv(x)))))
        return x + self.drop_path(tf.cast(self.scale, x.dtype) * y, rng)


class ConvNeXt(Module):
    """Maps images [rows, height, width, in_channels] to logits [rows, num_classes].

    `channels` and `blocks` have a number for each stage. The first convolution makes one pixel of `patch` × `patch`.
    The share of examples for which a block does nothing grows linearly from 0 in the first block to `drop_path` in the
    last.
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        num_classes: int,
        channels: Sequence[int] = (96, 192, 384, 768),
        blocks: Sequence[int] = (3, 3, 9, 3),
        patch: int = 4,
        drop_path: float = 0.0,
        rng: Rng,
    ):
        super().__init__()
        check_size(in_channels=in_channels, num_classes=num_classes, patch=patch)
        check_fraction(drop_path=drop_path)
        if len(channels) != len(blocks) or not blocks:
            raise ValueError(
                f"`channels` is {list(channels)} and `blocks` is {list(blocks)}; give both one number for each stage."
            )
        self.downs, self.norms, self.stages = [], [], list[list[ConvNeXtBlock]]()
        size, place = in_channels, 0
        for i, (out_size, count) in enumerate(zip(channels, blocks, strict=True)):
            step = 2 if i else patch
            self.downs.append(
                layers.Conv2D(
                    size, out_size, step, stride=step, padding="VALID", rng=rng.fold(f"down_{i}"), w_init=MATRIX
                )
            )
            # The norm follows the first convolution, and comes before the others.
            self.norms.append(layers.LayerNorm(size if i else out_size, epsilon=EPSILON))
            self.stages.append([])
            for _ in range(count):
                rate = drop_path * place / max(1, sum(blocks) - 1)
                self.stages[-1].append(ConvNeXtBlock(out_size, drop_path=rate, rng=rng.fold(place)))
                place += 1
            size = out_size
        self.norm = layers.LayerNorm(size, epsilon=EPSILON)
        self.logits = layers.Linear(size, num_classes, rng=rng.fold("logits"), w_init=MATRIX)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        for i, (down, norm, stage) in enumerate(zip(self.downs, self.norms, self.stages, strict=True)):
            x = down(norm(x)) if i else norm(down(x))
            for j, block in enumerate(stage):
                x = block(x, rng and rng.fold(f"block_{i}_{j}"))
        return self.logits(self.norm(layers.global_average_pool(x)))


@gin.configurable
class ConvNeXtClassifier(Classifier):
    """Classifies images of `image_shape` (height, width, channels) with a `ConvNeXt`, by default the paper's tiny one.

    The sides of the images are multiples of `patch`, doubled for each further stage.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        channels: Sequence[int] = (96, 192, 384, 768),
        blocks: Sequence[int] = (3, 3, 9, 3),
        patch: int = 4,
        drop_path: float = 0.0,
        num_classes: int = 10,
        augment: Sequence[Augment] = (),
        mix: Mix | None = None,
        optimizer: Transform = gin.REQUIRED,
    ):
        net = ConvNeXt(
            in_channels=image_shape[-1],
            num_classes=num_classes,
            channels=channels,
            blocks=blocks,
            patch=patch,
            drop_path=drop_path,
            rng=rng,
        )
        image = Image(image_shape)
        super().__init__(net, image=image, num_classes=num_classes, augment=augment, mix=mix, optimizer=optimizer)
