"""Layers made of layers."""

from collections.abc import Sequence

import tensorflow as tf

from core.layers.calls import Layer, arguments_of, call
from core.layers.shapes import check_rank
from core.module import Module
from core.random import Rng
from core.task.statistics import Statistics


class Sequential(Module):
    """Applies layers in order; plain functions (`tf.nn.relu`) are layers too.

    >>> from core.layers import Dropout, Linear
    >>> rng = Rng.from_seed(0)
    >>> net = Sequential([Linear(4, 8, rng=rng.fold(0)), tf.nn.relu, Dropout(0.5), Linear(8, 2, rng=rng.fold(1))])
    >>> net(tf.ones([3, 4])).shape  # evaluation; with an `rng`, training
    TensorShape([3, 2])
    """

    def __init__(self, layers: Sequence[Layer]):
        super().__init__()
        self.layers = tuple(layers)
        self._takes = tuple(arguments_of(layer) for layer in self.layers)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None, *, statistics: Statistics | None = None) -> tf.Tensor:
        for i, (layer, takes) in enumerate(zip(self.layers, self._takes, strict=True)):
            own = None if rng is None or "rng" not in takes else rng.fold(i)
            x = call(layer, takes, x, rng=own, statistics=statistics)
        return x


class Residual(Module):
    """Returns `shortcut(x) + layer(x)`, or `x + layer(x)` without a `shortcut` (He et al., 2016)."""

    def __init__(self, layer: Layer, shortcut: Layer | None = None):
        super().__init__()
        self.layer, self.shortcut = layer, shortcut
        self._takes = arguments_of(layer)
        self._shortcut_takes = frozenset() if shortcut is None else arguments_of(shortcut)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None, *, statistics: Statistics | None = None) -> tf.Tensor:
        def fold(name: str) -> Rng | None:
            return None if rng is None else rng.fold(name)

        y = call(self.layer, self._takes, x, rng=fold("layer"), statistics=statistics)
        if self.shortcut is not None:
            x = call(self.shortcut, self._shortcut_takes, x, rng=fold("shortcut"), statistics=statistics)
        if not x.shape.is_compatible_with(y.shape):
            raise ValueError(
                f"`layer` of `Residual` made shape {y.shape}, to be added to {x.shape}; give a `shortcut` that makes "
                "the same shape, such as a convolution of size 1 with the stride of the layer."
            )
        return x + y


def flatten(x: tf.Tensor) -> tf.Tensor:
    """Flattens all axes after the batch into one: [batch, ...] to [batch, size]."""
    check_rank("flatten", x)
    if None in x.shape[1:]:
        raise ValueError(f"`x` of `flatten` has shape {x.shape}; give all except the first with `tf.ensure_shape`.")
    return tf.reshape(x, [tf.shape(x)[0], x.shape[1:].num_elements()])
