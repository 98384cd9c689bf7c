"""The convolutional networks of a DCGAN (Radford et al., 2016), for `Gan.networks`.

Both networks consist of 4×4 convolutions with a stride of 2. In the generator, these are transposed, and each doubles
the image. In the discriminator, each halves it. The paper normalises over the batch in both networks. Here, by
default, the generator normalises groups of channels (Wu and He, 2018), and the discriminator doesn't normalise. So
rows are independent, as gradient penalties need.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import gin
import tensorflow as tf

from core import initializers, layers
from core.errors import ConfigurationError
from core.layers.calls import Layer
from core.module import Module
from core.random import Rng
from core.task.statistics import Statistics
from models.classifiers.task import flatten
from models.gan.parts import LatentsOfClass, ProjectionHead, normalised

Norm = Literal["group", "instance", "batch", "none"]


class DcGanGenerator(Module):
    """G: maps a vector linearly to the smallest feature map, and doubles the map until it has the image's size."""

    def __init__(
        self,
        latent_size: int,
        image_shape: Sequence[int],
        *,
        channels: Sequence[int],
        norm: Norm,
        num_classes: int | None,
        rng: Rng,
    ):
        super().__init__()
        height, width = smallest_map(image_shape, channels)
        self.latents = LatentsOfClass(latent_size, num_classes, rng=rng.fold("latents"))
        self.smallest, bias = [height, width, channels[0]], norm == "none"  # a norm has its own offset
        self.start = layers.Linear(self.latents.size, math.prod(self.smallest), rng=rng.fold("start"), bias=bias)
        parts: list[Layer] = [*_norm(norm, channels[0]), tf.nn.relu]
        for i, (size, out_size) in enumerate(itertools.pairwise(channels)):
            up = layers.ConvTranspose2D(size, out_size, 4, stride=2, rng=rng.fold(i), w_init=_WEIGHTS, bias=bias)
            parts += [up, *_norm(norm, out_size), tf.nn.relu]
        last = layers.ConvTranspose2D(channels[-1], image_shape[-1], 4, stride=2, rng=rng.fold("image"))
        self.body = layers.Sequential([*parts, last, tf.tanh])

    def __call__(
        self, z: tf.Tensor, label: tf.Tensor | None = None, *, statistics: Statistics | None = None
    ) -> tf.Tensor:
        x = self.start(self.latents(z, label))
        return self.body(tf.reshape(x, [-1, *self.smallest]), statistics=statistics)


class DcGanDiscriminator(Module):
    """D: halves an image until it is the smallest feature map, and maps this linearly to a logit.

    As in the paper, the first layer isn't normalised.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        *,
        channels: Sequence[int],
        norm: Norm,
        num_classes: int | None,
        spectral_norm: bool,
        rng: Rng,
    ):
        super().__init__()
        height, width = smallest_map(image_shape, channels)
        parts: list[Layer] = []
        for i, (size, out_size) in enumerate(itertools.pairwise([image_shape[-1], *channels])):
            between = [] if i == 0 else _norm(norm, out_size)
            down = layers.Conv2D(size, out_size, 4, stride=2, rng=rng.fold(i), w_init=_WEIGHTS, bias=not between)
            parts += [normalised(down, spectral_norm, rng.fold(i)), *between, _leaky_relu]
        self.body = layers.Sequential(parts)
        features = height * width * channels[-1]
        self.head = ProjectionHead(features, num_classes, spectral_norm=spectral_norm, rng=rng.fold("head"))

    def __call__(
        self, image: tf.Tensor, label: tf.Tensor | None = None, *, statistics: Statistics | None = None
    ) -> tf.Tensor:
        return self.head(flatten(self.body(image, statistics=statistics)), label)


@gin.configurable
def dcgan_networks(
    *,
    image_shape: Sequence[int],
    latent_size: int,
    num_classes: int | None,
    rng: Rng,
    channels: Sequence[int] = (32, 64),
    g_norm: Norm = "group",
    d_norm: Norm = "none",
    spectral_norm: bool = False,
) -> tuple[Module, Module]:
    """Makes `(generator, discriminator)`. `channels` are the discriminator's; the generator has them in reverse.

    `spectral_norm` applies to the discriminator (Miyato et al., 2018). `"batch"` norms are for `BatchNormGan`.
    """
    g = DcGanGenerator(
        latent_size, image_shape, channels=channels[::-1], norm=g_norm, num_classes=num_classes, rng=rng.fold("g")
    )
    d = DcGanDiscriminator(
        image_shape,
        channels=channels,
        norm=d_norm,
        num_classes=num_classes,
        spectral_norm=spectral_norm,
        rng=rng.fold("d"),
    )
    return g, d


def smallest_map(image_shape: Sequence[int], channels: Sequence[int]) -> tuple[int, int]:
    """Returns `(height, width)` of `image_shape`, halved once for each of `channels`."""
    factor = 2 ** len(channels)
    height, width, _ = image_shape
    if not channels or height % factor or width % factor:
        raise ConfigurationError(
            f"`dcgan_networks.channels` has {len(channels)} entries, but {height}x{width} pixels can't be halved as "
            "often: give one or more, as many as both sides allow, or another `Gan.image_shape`."
        )
    return height // factor, width // factor


_WEIGHTS = initializers.he_normal()  # the paper's 0.02 suits its hundreds of channels, not a few dozen


def _leaky_relu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.leaky_relu(x, 0.2)


def _norm(norm: Norm, size: int) -> list[Layer]:
    if norm == "group":
        return [layers.GroupNorm(size, math.gcd(size, 8))]
    if norm == "instance":
        return [layers.InstanceNorm(size)]
    if norm == "batch":
        return [layers.BatchNorm(size, sync=True)]
    return []
