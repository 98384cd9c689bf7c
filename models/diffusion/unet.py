"""The U-Net of DDPM (Ho, Jain and Abbeel, 2020, appendix B): residual blocks on several scales, and self-attention."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_groups, check_size
from core.layers.shapes import sizes
from core.module import Module
from core.random import Rng
from models.diffusion.waves import TIMES, waves

UNIFORM = initializers.variance_scaling(1.0, "fan_avg", "uniform")
# A block begins as its shortcut. The paper's code has this scale in place of zero, so that every weight has a gradient.
TINY = initializers.variance_scaling(1e-10, "fan_avg", "uniform")


class ResidualBlock(Module):
    """Two convolutions, with a function of the embedded time between them, and attention after them if it `attends`."""

    def __init__(
        self, in_channels: int, channels: int, *, embedding_size: int, groups: int, attends: bool = False, rng: Rng
    ):
        super().__init__()
        self.norm_1 = layers.GroupNorm(in_channels, groups)
        self.conv_1 = layers.Conv2D(in_channels, channels, 3, rng=rng.fold("conv_1"), w_init=UNIFORM)
        self.time = layers.Linear(embedding_size, channels, rng=rng.fold("time"), w_init=UNIFORM)
        self.norm_2 = layers.GroupNorm(channels, groups)
        self.conv_2 = layers.Conv2D(channels, channels, 3, rng=rng.fold("conv_2"), w_init=TINY)
        self.shortcut = None
        if in_channels != channels:
            self.shortcut = layers.Conv2D(in_channels, channels, 1, rng=rng.fold("shortcut"), w_init=UNIFORM)
        self.attention = Attention(channels, groups=groups, rng=rng.fold("attention")) if attends else None

    def __call__(self, x: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
        h = self.conv_1(tf.nn.silu(self.norm_1(x)))
        h += tf.expand_dims(tf.expand_dims(self.time(tf.nn.silu(embedding)), 1), 1)
        h = self.conv_2(tf.nn.silu(self.norm_2(h)))
        h += self.shortcut(x) if self.shortcut else x
        return self.attention(h) if self.attention else h


class Attention(Module):
    """Adds to each pixel what one head of attention reads from all pixels."""

    def __init__(self, channels: int, *, groups: int, rng: Rng):
        super().__init__()
        self.norm = layers.GroupNorm(channels, groups)
        self.attention = layers.MultiHeadAttention(channels, 1, rng=rng, w_init=UNIFORM, out_init=TINY)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        rows, height, width, channels = sizes(x)
        pixels = self.attention(tf.reshape(self.norm(x), [rows, height * width, channels]))
        return x + tf.reshape(pixels, [rows, height, width, channels])


class Scale(Module):
    """The blocks at one size of the image, and the layer that makes the next size, if there is one."""

    def __init__(self, blocks: Sequence[ResidualBlock], resize: layers.Conv2D | layers.Sequential | None):
        super().__init__()
        self.blocks, self.resize = list(blocks), resize


class UNet(Module):
    """F(x, time): maps images [rows, height, width, depth], times [rows] and perhaps classes [rows] to such images.

    `multipliers` has a number for each size of the image, from the whole one to its halves: the channels there are this
    multiple of `channels`. Each size has `blocks` blocks on the way down, and one more on the way up. Blocks attend
    where the image's height is one of `attention_at`, and in the middle. The class `num_classes` stands for none.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        *,
        channels: int,
        multipliers: Sequence[int],
        blocks: int,
        attention_at: Sequence[int],
        groups: int,
        num_classes: int | None = None,
        rng: Rng,
    ):
        super().__init__()
        check_size(channels=channels, blocks=blocks, groups=groups)
        check_groups("groups", groups, channels=channels)
        scales = list(zip(multipliers, _heights(image_shape, len(multipliers), attention_at), strict=True))
        self.channels, size, depth = channels, 4 * channels, image_shape[-1]

        def block(here: int, width: int, attends: bool, rng: Rng) -> ResidualBlock:
            return ResidualBlock(here, width, embedding_size=size, groups=groups, attends=attends, rng=rng)

        def conv(here: int, width: int, rng: Rng, stride: int = 1) -> layers.Conv2D:
            return layers.Conv2D(here, width, 3, stride=stride, rng=rng, w_init=UNIFORM)

        self.time_1 = layers.Linear(channels, size, rng=rng.fold("time_1"), w_init=UNIFORM)
        self.time_2 = layers.Linear(size, size, rng=rng.fold("time_2"), w_init=UNIFORM)
        self.label = None
        if num_classes is not None:
            self.label = layers.Embedding(num_classes + 1, size, rng=rng.fold("label"))
        self.first = conv(depth, channels, rng.fold("first"))
        self.down, self.up = [], []
        here, skips = channels, [channels]
        for i, (multiplier, height) in enumerate(scales):
            own, made = rng.fold("down").fold(i), []
            for j in range(blocks):
                made.append(block(here, multiplier * channels, height in attention_at, own.fold(j)))
                here = multiplier * channels
                skips.append(here)
            halve = None
            if i < len(scales) - 1:
                halve = conv(here, here, own.fold("halve"), stride=2)
                skips.append(here)
            self.down.append(Scale(made, halve))
        self.middle = [block(here, here, i == 0, rng.fold("middle").fold(i)) for i in range(2)]
        for i, (multiplier, height) in reversed(list(enumerate(scales))):
            own, made = rng.fold("up").fold(i), []
            for j in range(blocks + 1):
                made.append(block(here + skips.pop(), multiplier * channels, height in attention_at, own.fold(j)))
                here = multiplier * channels
            double = None
            if i > 0:
                nearest = layers.Resize(scale=2, method="nearest")
                double = layers.Sequential([nearest, conv(here, here, own.fold("double"))])
            self.up.append(Scale(made, double))
        self.norm = layers.GroupNorm(here, groups)
        self.last = layers.Conv2D(here, depth, 3, rng=rng.fold("last"), w_init=TINY)

    def __call__(self, x: tf.Tensor, time: tf.Tensor, label: tf.Tensor | None = None) -> tf.Tensor:
        embedded = tf.cast(waves(TIMES * time, self.channels), x.dtype)
        embedded = self.time_2(tf.nn.silu(self.time_1(embedded)))
        if self.label is not None:
            embedded += self.label(label, dtype=x.dtype)
        x = self.first(x)
        skips = [x]
        for scale in self.down:
            for block in scale.blocks:
                x = block(x, embedded)
                skips.append(x)
            if scale.resize:
                x = scale.resize(x)
                skips.append(x)
        for block in self.middle:
            x = block(x, embedded)
        for scale in self.up:
            for block in scale.blocks:
                x = block(tf.concat([x, skips.pop()], -1), embedded)
            if scale.resize:
                x = scale.resize(x)
        return self.last(tf.nn.silu(self.norm(x)))


@gin.configurable
def unet(
    *,
    image_shape: Sequence[int],
    num_classes: int | None,
    rng: Rng,
    channels: int = 128,
    multipliers: Sequence[int] = (1, 2, 2, 2),
    blocks: int = 2,
    attention_at: Sequence[int] = (16,),
    groups: int = 32,
) -> UNet:
    """Makes a `UNet` for `Diffusion.network`. The defaults are the paper's for 32x32 images."""
    return UNet(
        image_shape,
        channels=channels,
        multipliers=multipliers,
        blocks=blocks,
        attention_at=attention_at,
        groups=groups,
        num_classes=num_classes,
        rng=rng,
    )


def _heights(image_shape: Sequence[int], scales: int, attention_at: Sequence[int]) -> list[int]:
    """Returns the height of the image at each of the `scales`, if sides can be halved and attention has its size."""
    step = 2 ** (scales - 1)
    if scales < 1 or len(image_shape) != 3 or image_shape[0] % step or image_shape[1] % step:
        raise ValueError(
            f"`image_shape` is {list(image_shape)}, and `multipliers` has {scales} sizes of it, each half of the one "
            f"before; give [height, width, channels] in multiples of {step:g}, or other `multipliers`."
        )
    heights = [image_shape[0] // 2**i for i in range(scales)]
    if missing := [height for height in attention_at if height not in heights]:
        raise ValueError(f"`attention_at` has {missing[0]}, but images are {heights} pixels high: give some of these.")
    return heights
