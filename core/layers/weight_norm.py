"""Wrappers that call a layer with a normalised kernel. The layer's variable `w` keeps its value.

They wrap any layer with a kernel `w` [..., outputs] and a method `compute(*inputs, w)`: linear and bilinear layers and
all convolutions.
"""

from typing import Protocol

import tensorflow as tf

from core.arguments import check_size
from core.choice import one_of
from core.module import Module
from core.random import Rng
from core.task.statistics import Values


class HasKernel(Protocol):
    """A layer that can compute with a given kernel in place of its variable `w`."""

    w: tf.Variable

    def compute(self, *inputs: tf.Tensor) -> tf.Tensor:
        """Returns the layer's output for `inputs`, whose last one is the kernel."""


class WeightNorm(Module):
    """Uses the kernel `scale * w / |w|` for each output (Salimans and Kingma, 2016). `scale` starts as `|w|`."""

    def __init__(self, layer: HasKernel):
        super().__init__()
        _check_kernel(self, layer)
        self.layer = layer
        self.scale = tf.Variable(tf.norm(_matrix(layer.w), axis=0), name="scale")

    def __call__(self, *inputs: tf.Tensor) -> tf.Tensor:
        return self.layer.compute(*inputs, self.kernel())

    def kernel(self) -> tf.Tensor:
        """Returns the normalised kernel, in the shape of `layer.w`."""
        direction = tf.math.l2_normalize(_matrix(self.layer.w), 0, _TINY)
        return tf.reshape(direction * self.scale, self.layer.w.shape)


class SpectralNorm(Module):
    """Divides the kernel by its largest singular value (Miyato et al., 2018), as a matrix with one row per output.

    Power iteration moves `vector` towards the first singular vector, so `|w v|` estimates the singular value. `vector`
    is derived state: the forward pass reads it, and `refresh` computes its next value. The engine assigns this value
    once per applied update.
    """

    def __init__(self, layer: HasKernel, *, rng: Rng, iterations: int = 1):
        super().__init__()
        _check_kernel(self, layer)
        check_size(iterations=iterations)
        self.layer, self.iterations = layer, iterations
        start = tf.math.l2_normalize(rng.fold("vector").normal([layer.w.shape[-1]]))
        self.vector = tf.Variable(start, trainable=False, name="vector")
        # With a random vector the singular value would be far too small, so start near the converged vector.
        self.vector.assign(power_iteration(_matrix(layer.w), self.vector.read_value(), 30))

    def __call__(self, *inputs: tf.Tensor) -> tf.Tensor:
        return self.layer.compute(*inputs, self.kernel())

    def kernel(self) -> tf.Tensor:
        """Returns the normalised kernel, in the shape of `layer.w`."""
        # For a unit vector v, |W v| is the paper's u'Wv with the current u, and has the same gradient, u v'.
        square = tf.reduce_sum(tf.square(tf.linalg.matvec(_matrix(self.layer.w), self.vector)))
        return self.layer.w * tf.math.rsqrt(tf.maximum(square, _TINY))

    def refresh(self) -> Values:
        """Returns `{vector.ref(): value}`: the next value of `vector`, not yet assigned."""
        return {self.vector.ref(): power_iteration(_matrix(self.layer.w), self.vector.read_value(), self.iterations)}


def power_iteration(w: tf.Tensor, v: tf.Tensor, iterations: int) -> tf.Tensor:
    """Returns `v` after `iterations` steps towards the first right singular vector of `w`."""
    for _ in range(iterations):
        u = tf.math.l2_normalize(tf.linalg.matvec(w, v), epsilon=_TINY)
        longer = tf.linalg.matvec(w, u, transpose_a=True)
        # A kernel of zeros has no direction: the vector keeps its value.
        v = one_of(tf.reduce_any(longer != 0.0), tf.math.l2_normalize(longer, epsilon=_TINY), v)
    return v


_TINY = 1e-24  # of squares: it keeps a kernel of zeros, and its gradient, finite


def _matrix(w: tf.Tensor) -> tf.Tensor:
    return tf.reshape(w, [-1, w.shape[-1]])


def _check_kernel(wrapper: object, layer: object) -> None:
    if not (isinstance(getattr(layer, "w", None), tf.Variable) and hasattr(layer, "compute")):
        raise ValueError(
            f"`layer` of `{type(wrapper).__name__}` is {layer!r}; give one with a kernel, such as `Linear` or `Conv2D`."
        )
