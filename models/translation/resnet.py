"""The generator of CycleGAN (Zhu et al., 2017), after Johnson et al. (2016).

In the paper's notation: c7s1-64, d128, d256, R256 six or nine times, u128, u64, c7s1-3.
"""

import tensorflow as tf

from core import initializers, layers
from core.layers.calls import Layer
from core.module import Module
from core.random import Rng


class ResNetGenerator(Module):
    """G: halves images in [-1, 1] twice, applies `blocks` residual blocks, and doubles the size twice.

    Borders are padded by reflection, because zero padding would give images a visible frame.
    """

    def __init__(self, channels: int, *, width: int, blocks: int, rng: Rng):
        super().__init__()
        c1, c2, c4 = width, 2 * width, 4 * width
        self.net = layers.Sequential(
            [
                *_reflected(channels, c1, 7, rng.fold("c7s1_in")),
                *_normed(c1),
                layers.Conv2D(c1, c2, 3, stride=2, padding=1, bias=False, w_init=_init(), rng=rng.fold("d2")),
                *_normed(c2),
                layers.Conv2D(c2, c4, 3, stride=2, padding=1, bias=False, w_init=_init(), rng=rng.fold("d4")),
                *_normed(c4),
                *(_residual(c4, rng.fold("r").fold(i)) for i in range(blocks)),
                layers.ConvTranspose2D(c4, c2, 3, stride=2, bias=False, w_init=_init(), rng=rng.fold("u2")),
                *_normed(c2),
                layers.ConvTranspose2D(c2, c1, 3, stride=2, bias=False, w_init=_init(), rng=rng.fold("u1")),
                *_normed(c1),
                *_reflected(c1, channels, 7, rng.fold("c7s1_out"), bias=True),
                tf.tanh,
            ]
        )

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return self.net(images)


def _init() -> initializers.Initializer:
    return initializers.normal(0.02)


def _reflected(in_channels: int, out_channels: int, size: int, rng: Rng, *, bias: bool = False) -> list[Layer]:
    # A norm would remove a bias together with the mean.
    conv = layers.Conv2D(in_channels, out_channels, size, padding="VALID", bias=bias, w_init=_init(), rng=rng)
    return [layers.Pad(size // 2, mode="REFLECT"), conv]


def _normed(channels: int) -> list[Layer]:
    return [layers.InstanceNorm(channels), tf.nn.relu]


def _residual(channels: int, rng: Rng) -> layers.Residual:
    return layers.Residual(
        layers.Sequential(
            [
                *_reflected(channels, channels, 3, rng.fold(0)),
                *_normed(channels),
                *_reflected(channels, channels, 3, rng.fold(1)),
                layers.InstanceNorm(channels),
            ]
        )
    )
