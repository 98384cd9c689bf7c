"""PatchGAN (Isola et al., 2017): a discriminator that judges overlapping patches separately."""

from collections.abc import Sequence

import tensorflow as tf

from core import initializers, layers
from core.errors import ConfigurationError
from core.layers.calls import Layer
from core.module import Module
from core.random import Rng

_KERNEL = 4


class PatchGan(Module):
    """D: maps images [rows, height, width, in_channels] to logits [rows, h, w, 1], one per patch.

    In the papers' notation, `channels=(64, 128, 256, 512)` is C64-C128-C256-C512, whose patches have 70 by 70 pixels.
    Three entries give patches of 34 by 34, two give 16 by 16.
    """

    def __init__(self, in_channels: int, *, channels: Sequence[int], rng: Rng):
        super().__init__()
        if not channels:
            raise ValueError("`channels` of `PatchGan` is empty; give the channels of each layer, such as (64, 128).")
        self.strides = [2] * (len(channels) - 1) + [1, 1]
        init = initializers.normal(0.02)
        net: list[Layer] = []
        for i, (size, stride) in enumerate(zip([*channels, 1], self.strides, strict=True)):
            first, last = i == 0, i == len(channels)
            normed = not first and not last
            net.append(
                layers.Conv2D(
                    in_channels, size, _KERNEL, stride=stride, padding=1, bias=not normed, w_init=init, rng=rng.fold(i)
                )
            )
            net += [layers.InstanceNorm(size)] if normed else []
            net += [] if last else [_leaky_relu]
            in_channels = size
        self.net = layers.Sequential(net)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return self.net(images)

    @property
    def receptive_field(self) -> int:
        """Returns the side, in pixels, of the patch that one logit depends on."""
        field = 1
        for stride in reversed(self.strides):
            field = (field - 1) * stride + _KERNEL
        return field

    def check_size(self, task: str, image_shape: Sequence[int]) -> None:
        """Raises an error if images of `image_shape` are too small to give one logit."""
        for size in image_shape[:2]:
            left = size
            for stride in self.strides:
                left = (left + 2 - _KERNEL) // stride + 1
            if left < 1:
                raise ConfigurationError(
                    f"`{task}.discriminator_channels` has {len(self.strides) - 1} entries, too many for images of "
                    f"{image_shape[0]} by {image_shape[1]}: each except the last halves the image, and none is "
                    "left. Give fewer."
                )


def _leaky_relu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.leaky_relu(x, 0.2)
