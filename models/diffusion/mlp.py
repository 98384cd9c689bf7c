"""A residual perceptron that denoises small images: the network of a diffusion model that trains within a minute."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_size
from core.module import Module
from core.random import Rng
from models.diffusion.waves import TIMES, waves


class MlpBlock(Module):
    """Adds to `x` [rows, size] two matrices of it, with a function of the embedded time between them."""

    def __init__(self, size: int, *, rng: Rng):
        super().__init__()
        self.norm = layers.LayerNorm(size)
        self.linear_1 = layers.Linear(size, size, rng=rng.fold("linear_1"))
        self.time = layers.Linear(size, size, rng=rng.fold("time"))
        self.linear_2 = layers.Linear(size, size, rng=rng.fold("linear_2"), w_init=initializers.normal(1e-3))

    def __call__(self, x: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
        return x + self.linear_2(tf.nn.silu(self.linear_1(self.norm(x)) + self.time(embedded)))


class DiffusionMlp(Module):
    """F(x, time): maps images [rows, ...], times [rows] and perhaps classes [rows] to images.

    The class `num_classes` stands for none.
    """

    def __init__(self, image_shape: Sequence[int], *, size: int, blocks: int, num_classes: int | None = None, rng: Rng):
        super().__init__()
        check_size(size=size, blocks=blocks)
        self.image_shape, self.size = list(image_shape), size
        pixels = tf.TensorShape(image_shape).num_elements()
        self.time = layers.Linear(size, size, rng=rng.fold("time"))
        self.label = None
        if num_classes is not None:
            self.label = layers.Embedding(num_classes + 1, size, rng=rng.fold("label"))
        self.first = layers.Linear(pixels, size, rng=rng.fold("first"))
        self.blocks = [MlpBlock(size, rng=rng.fold("blocks").fold(i)) for i in range(blocks)]
        self.norm = layers.LayerNorm(size)
        self.last = layers.Linear(size, pixels, rng=rng.fold("last"), w_init=initializers.normal(1e-3))

    def __call__(self, x: tf.Tensor, time: tf.Tensor, label: tf.Tensor | None = None) -> tf.Tensor:
        embedded = self.time(tf.cast(waves(TIMES * time, self.size), x.dtype))
        if self.label is not None:
            embedded += self.label(label, dtype=x.dtype)
        embedded = tf.nn.silu(embedded)
        x = self.first(tf.reshape(x, [-1, self.first.in_size]))
        for block in self.blocks:
            x = block(x, embedded)
        return tf.reshape(self.last(tf.nn.silu(self.norm(x))), [-1, *self.image_shape])


@gin.configurable
def diffusion_mlp(
    *, image_shape: Sequence[int], num_classes: int | None, rng: Rng, size: int = 256, blocks: int = 3
) -> DiffusionMlp:
    """Makes a `DiffusionMlp` for `Diffusion.network`."""
    return DiffusionMlp(image_shape, size=size, blocks=blocks, num_classes=num_classes, rng=rng)
