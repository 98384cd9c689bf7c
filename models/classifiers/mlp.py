"""Multilayer perceptron: linear layers with a ReLU between them."""

import itertools
from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_fraction
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from models.classifiers.task import Classifier, flatten


class Mlp(Module):
    """A perceptron: `Mlp([64, 128, 10], rng=rng)` has 64 inputs, one hidden layer of 128, and 10 outputs."""

    def __init__(self, sizes: Sequence[int], *, rng: Rng, dropout: float = 0.0):
        super().__init__()
        check_fraction(dropout=dropout)
        if len(sizes) < 2:
            raise ValueError(
                f"`sizes` is {list(sizes)}; name at least the inputs and the outputs, as in `[64, 128, 10]`."
            )
        self.layers = [
            layers.Linear(in_size, out_size, rng=rng.fold(i), w_init=initializers.he_normal())
            for i, (in_size, out_size) in enumerate(itertools.pairwise(sizes))
        ]
        self.dropout = layers.Dropout(dropout)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        x = flatten(x)
        for i, layer in enumerate(self.layers[:-1]):
            x = self.dropout(tf.nn.relu(layer(x)), rng and rng.fold(i))
        return self.layers[-1](x)


@gin.configurable
class MlpClassifier(Classifier):
    """Classifies images with an `Mlp` of the given `sizes`; `sizes[-1]` is the number of classes."""

    def __init__(
        self,
        *,
        rng: Rng,
        sizes: Sequence[int] = gin.REQUIRED,
        dropout: float = 0.0,
        optimizer: Transform = gin.REQUIRED,
    ):
        super().__init__(Mlp(sizes, rng=rng, dropout=dropout), num_classes=sizes[-1], optimizer=optimizer)
