"""The networks of a small GAN: perceptrons on both sides."""

import itertools
from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.module import Module
from core.random import Rng
from models.classifiers.task import flatten
from models.gan.parts import LatentsOfClass, ProjectionHead, normalised


class MlpGenerator(Module):
    """G: maps latents to an image. A conditional one also gets a class."""

    def __init__(
        self, latent_size: int, image_shape: Sequence[int], *, hidden: Sequence[int], num_classes: int | None, rng: Rng
    ):
        super().__init__()
        self.image_shape, he = list(image_shape), initializers.he_normal()
        self.latents = LatentsOfClass(latent_size, num_classes, rng=rng.fold("latents"))
        sizes = [self.latents.size, *hidden]
        self.hidden = [
            layers.Linear(size, out_size, rng=rng.fold(i), w_init=he)
            for i, (size, out_size) in enumerate(itertools.pairwise(sizes))
        ]
        pixels = tf.TensorShape(self.image_shape).num_elements()
        self.image = layers.Linear(sizes[-1], pixels, rng=rng.fold("image"))

    def __call__(self, z: tf.Tensor, label: tf.Tensor | None = None) -> tf.Tensor:
        x = self.latents(z, label)
        for layer in self.hidden:
            x = tf.nn.relu(layer(x))
        return tf.reshape(tf.tanh(self.image(x)), [-1, *self.image_shape])


class MlpDiscriminator(Module):
    """D: maps an image to a logit. A conditional one also gets a class."""

    def __init__(
        self,
        image_shape: Sequence[int],
        *,
        hidden: Sequence[int],
        num_classes: int | None,
        spectral_norm: bool,
        rng: Rng,
    ):
        super().__init__()
        he = initializers.he_normal()
        sizes = [tf.TensorShape(image_shape).num_elements(), *hidden]
        self.hidden = [
            normalised(layers.Linear(size, out_size, rng=rng.fold(i), w_init=he), spectral_norm, rng.fold(i))
            for i, (size, out_size) in enumerate(itertools.pairwise(sizes))
        ]
        self.head = ProjectionHead(sizes[-1], num_classes, spectral_norm=spectral_norm, rng=rng.fold("head"))

    def __call__(self, image: tf.Tensor, label: tf.Tensor | None = None) -> tf.Tensor:
        x = flatten(image)
        for layer in self.hidden:
            x = tf.nn.leaky_relu(layer(x), 0.2)
        return self.head(x, label)


@gin.configurable
def mlp_networks(
    *,
    image_shape: Sequence[int],
    latent_size: int,
    num_classes: int | None,
    rng: Rng,
    g_hidden: Sequence[int] = (256, 256),
    d_hidden: Sequence[int] = (256, 256),
    spectral_norm: bool = False,
) -> tuple[Module, Module]:
    """Makes `(generator, discriminator)` for `Gan.networks`. `spectral_norm` is the discriminator's (Miyato, 2018)."""
    g = MlpGenerator(latent_size, image_shape, hidden=g_hidden, num_classes=num_classes, rng=rng.fold("g"))
    d = MlpDiscriminator(
        image_shape, hidden=d_hidden, num_classes=num_classes, spectral_norm=spectral_norm, rng=rng.fold("d")
    )
    return g, d
