"""Class conditioning of a GAN: the generator gets a vector per class, the discriminator a projection."""

import tensorflow as tf

from core import initializers, layers
from core.layers.calls import Layer
from core.module import Module
from core.random import Rng


class LatentsOfClass(Module):
    """Concatenates latents and a learnt vector of the class, `size` numbers in all. Without classes: latents alone."""

    def __init__(self, latent_size: int, num_classes: int | None, *, rng: Rng):
        super().__init__()
        self.size = latent_size if num_classes is None else 2 * latent_size
        self.classes = None
        if num_classes is not None:
            # As large as the latents, which are standard normal.
            self.classes = layers.Embedding(num_classes, latent_size, rng=rng, w_init=initializers.normal(1.0))

    def __call__(self, z: tf.Tensor, label: tf.Tensor | None) -> tf.Tensor:
        return z if self.classes is None else tf.concat([z, self.classes(label, dtype=z.dtype)], -1)


class ProjectionHead(Module):
    """Computes the logit ψ(h) + yᵀVh of features h and class y (Miyato and Koyama, 2018), or ψ(h) without classes."""

    def __init__(self, size: int, num_classes: int | None, *, spectral_norm: bool, rng: Rng):
        super().__init__()
        self.num_classes, self.classes = num_classes, None
        self.logit = normalised(layers.Linear(size, 1, rng=rng.fold("logit")), spectral_norm, rng.fold("logit"))
        if num_classes is not None:
            # A linear map of one-hot vectors, which can be normalised like any other layer.
            near = initializers.normal(size**-0.5)
            rng = rng.fold("classes")
            linear = layers.Linear(num_classes, size, rng=rng, bias=False, w_init=near)
            self.classes = normalised(linear, spectral_norm, rng)

    def __call__(self, h: tf.Tensor, label: tf.Tensor | None) -> tf.Tensor:
        logit = self.logit(h)[:, 0]
        if self.classes is None:
            return logit
        products = h * self.classes(tf.one_hot(label, self.num_classes, dtype=h.dtype))
        return logit + tf.cast(tf.reduce_sum(tf.cast(products, tf.float32), -1), logit.dtype)


def normalised(layer: layers.Linear | layers.Conv2D, spectral_norm: bool, rng: Rng) -> Layer:
    """Returns `SpectralNorm(layer)` (Miyato et al., 2018) if `spectral_norm`, else `layer`."""
    return layers.SpectralNorm(layer, rng=rng) if spectral_norm else layer
