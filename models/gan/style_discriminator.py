"""The discriminator of StyleGAN2 (Karras et al., 2020, figure 7c): residual, with the deviation in a minibatch."""

import itertools
import math
from collections.abc import Sequence

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import Module
from core.random import Rng
from models.classifiers.task import flatten
from models.gan.style_layers import activated, convolution, filtered, linear, minibatch_deviation


class ResidualBlock(Module):
    """Halves an image: two 3×3 convolutions, and next to them a 1×1 convolution. Each is smoothed before it halves."""

    def __init__(self, in_channels: int, out_channels: int, *, rng: Rng):
        super().__init__()
        self.first = convolution(in_channels, in_channels, 3, rng=rng.fold("first"))
        self.last = convolution(in_channels, out_channels, 3, rng=rng.fold("last"), down=True)
        self.skip = convolution(in_channels, out_channels, 1, rng=rng.fold("skip"), down=True, bias=None)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        y = activated(self.last(filtered(activated(self.first(x)), 2, 2)))
        return (y + self.skip(filtered(x, 1, 1))) / math.sqrt(2.0)


class StyleDiscriminator(Module):
    """D: maps images to logits. `channels` are those of each resolution, from the smallest, as the generator's.

    It compares images in `group`s of consecutive rows. A replica or microbatch with whole groups has the results of
    the whole batch, so nothing is sent. In the paper's code, groups depend on the number of replicas.
    """

    def __init__(self, image_shape: Sequence[int], *, channels: Sequence[int], group: int, rng: Rng):
        super().__init__()
        self.group = group
        height, width = (side // 2 ** (len(channels) - 1) for side in image_shape[:2])
        self.start = convolution(image_shape[-1], channels[-1], 1, rng=rng.fold("start"))
        self.blocks = [
            ResidualBlock(a, b, rng=rng.fold(i)) for i, (a, b) in enumerate(itertools.pairwise(channels[::-1]))
        ]
        size = channels[0]
        self.conv = convolution(size + 1, size, 3, rng=rng.fold("conv"))
        self.hidden = linear(height * width * size, size, rng=rng.fold("hidden"))
        self.logit = linear(size, 1, rng=rng.fold("logit"))

    def __call__(self, image: tf.Tensor, label: None = None) -> tf.Tensor:
        rows = image.shape[0]
        if rows is not None and rows % self.group:
            raise ConfigurationError(
                f"the discriminator compares images in groups of {self.group} (`group`), but sees {rows} rows: give a "
                "`Trainer.global_batch_size` whose share of a replica and microbatch is a multiple of the group."
            )
        x = activated(self.start(image))
        for block in self.blocks:
            x = block(x)
        x = activated(self.conv(minibatch_deviation(x, self.group)))
        return self.logit(activated(self.hidden(flatten(x))))[:, 0]
