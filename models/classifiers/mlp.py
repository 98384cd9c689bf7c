"""Multilayer perceptron: linear layers with a ReLU between them."""

import itertools
from collections.abc import Sequence

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_fraction, check_size
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from models.classifiers.task import Classifier, flatten


class Mlp(Module):
    """A perceptron: `Mlp([64, 128, 10], rng=rng)` has 64 inputs, one hidden layer of 128, and 10 outputs.

    With `base_width`, the last layer follows muP (see `core.optimizers.mup`): it has the initial weights of a network
    of that width, and its inputs are multiplied by base_width / width.
    """

    def __init__(self, sizes: Sequence[int], *, rng: Rng, dropout: float = 0.0, base_width: int | None = None):
        super().__init__()
        check_fraction(dropout=dropout)
        if len(sizes) < 2:
            raise ValueError(
                f"`sizes` is {list(sizes)}; name at least the inputs and the outputs, as in `[64, 128, 10]`."
            )
        self.out_scale = 1.0
        if base_width is not None:
            check_size(base_width=base_width)
            self.out_scale = base_width / sizes[-2]
        scales = [2.0] * (len(sizes) - 2) + [2.0 / self.out_scale]
        self.layers = [
            layers.Linear(in_size, out_size, rng=rng.fold(i), w_init=initializers.variance_scaling(scale))
            for i, (scale, (in_size, out_size)) in enumerate(zip(scales, itertools.pairwise(sizes), strict=True))
        ]
        self.dropout = layers.Dropout(dropout)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        x = flatten(x)
        for i, layer in enumerate(self.layers[:-1]):
            x = self.dropout(tf.nn.relu(layer(x)), rng and rng.fold(i))
        return self.layers[-1](x if self.out_scale == 1.0 else self.out_scale * x)


@gin.configurable
class MlpClassifier(Classifier):
    """Classifies images with an `Mlp` of the given `sizes`. `sizes[-1]` is the number of classes.

    With `base_width`, the network follows muP. `optimizer` is then a `mup`.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        sizes: Sequence[int] = gin.REQUIRED,
        dropout: float = 0.0,
        base_width: int | None = None,
        optimizer: Transform = gin.REQUIRED,
    ):
        net = Mlp(sizes, rng=rng, dropout=dropout, base_width=base_width)
        super().__init__(net, num_classes=sizes[-1], optimizer=optimizer)
