"""The generator of pix2pix (Isola et al., 2017), after Ronneberger et al. (2015): a U-Net with skip connections."""

from collections.abc import Sequence

import tensorflow as tf

from core import initializers, layers
from core.module import Module
from core.random import Rng

_DROPPED = 3  # layers of the decoder with dropout, which is this generator's only noise


class UNetGenerator(Module):
    """G: halves images once for each of `channels`, then doubles them as often, with skip connections.

    In the paper's notation `channels=(64, 128, 256, 512, 512, 512, 512, 512)` is C64-C128-C256-C512-C512-C512-C512-C512
    and back CD512-CD512-CD512-C512-C256-C128-C64.
    """

    def __init__(self, in_channels: int, out_channels: int, *, channels: Sequence[int], dropout: float, rng: Rng):
        super().__init__()
        if len(channels) < 2:
            raise ValueError(f"`channels` of `UNetGenerator` is {channels!r}; give those of two layers at the least.")
        self.down, self.up = [], []
        size = in_channels
        for i, out in enumerate(channels):
            # No norm on the innermost features: for a single pixel it would give zero.
            normed = 0 < i < len(channels) - 1
            self.down.append(_Halving(size, out, normed=normed, rng=rng.fold("down").fold(i)))
            size = out
        for i, out in enumerate([*reversed(channels[:-1]), out_channels]):
            last = i == len(channels) - 1
            rate = dropout if i < _DROPPED and not last else 0.0
            self.up.append(_Doubling(size, out, normed=not last, dropout=rate, rng=rng.fold("up").fold(i)))
            size = 2 * out

    def __call__(self, images: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        """Translates `images`: with dropout if `rng` is given, else deterministically."""
        x, skips = images, []
        for i, halving in enumerate(self.down):
            x = halving(tf.nn.leaky_relu(x, 0.2) if i else x)
            skips.append(x)
        for i, doubling in enumerate(self.up):
            x = tf.concat([x, skips[-1 - i]], -1) if i else x
            x = doubling(tf.nn.relu(x), rng and rng.fold(i))
        return tf.tanh(x)


class _Halving(Module):
    def __init__(self, in_channels: int, out_channels: int, *, normed: bool, rng: Rng):
        super().__init__()
        init = initializers.normal(0.02)
        self.conv = layers.Conv2D(
            in_channels, out_channels, 4, stride=2, padding=1, bias=not normed, w_init=init, rng=rng
        )
        self.norm = layers.InstanceNorm(out_channels) if normed else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        x = self.conv(x)
        return self.norm(x) if self.norm else x


class _Doubling(Module):
    def __init__(self, in_channels: int, out_channels: int, *, normed: bool, dropout: float, rng: Rng):
        super().__init__()
        init = initializers.normal(0.02)
        self.conv = layers.ConvTranspose2D(
            in_channels, out_channels, 4, stride=2, bias=not normed, w_init=init, rng=rng
        )
        self.norm = layers.InstanceNorm(out_channels) if normed else None
        self.dropout = layers.Dropout(dropout)

    def __call__(self, x: tf.Tensor, rng: Rng | None) -> tf.Tensor:
        x = self.conv(x)
        x = self.norm(x) if self.norm else x
        return self.dropout(x, rng)
