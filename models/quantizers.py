"""Quantisers for autoencoders with discrete latents: vectors become entries of a finite code.

Rounding has no gradient, so the gradient of the result passes to the input unchanged (straight-through: Bengio et al.,
2013). `metrics.CodeUsage` measures how many codes are in use. A task takes one by `@vector_quantizer` or
`@scalar_quantizer`:

>>> quantizer = scalar_quantizer(levels=[3, 3], rng=Rng.from_seed(0))
>>> vectors, codes = quantizer(tf.constant([[0.0, 2.0]]))
>>> vectors.numpy().tolist(), codes.numpy().tolist(), quantizer.num_codes
([[0.0, 1.0]], [7], 9)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import gin
import tensorflow as tf

from core import initializers
from core.arguments import check_not_negative, check_size
from core.layers.shapes import check_last, nan_unless
from core.module import Module
from core.random import Rng


class Quantized(NamedTuple):
    """The entries of the code for vectors [..., size]."""

    vectors: tf.Tensor  # [..., size]
    codes: tf.Tensor  # int32 [...]: the index of each entry


class Quantizer(Protocol):
    """A module that replaces vectors [..., size] by entries of its code."""

    size: int
    num_codes: int

    def __call__(self, x: tf.Tensor) -> Quantized: ...

    def entries(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns the vectors [..., size] of `codes` [...]: float32, and `nan` for a code that doesn't exist."""

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        """Returns a loss for each vector of `x`, which a step adds to its own: float32 [...]."""


class VectorQuantizer(Module):
    """Replaces each vector by the nearest of `num_codes` trained ones (VQ-VAE: van den Oord et al., 2017)."""

    def __init__(self, num_codes: int, size: int, *, commitment: float = 0.25, rng: Rng):
        super().__init__()
        check_size(num_codes=num_codes, size=size)
        check_not_negative(commitment=commitment)
        self.num_codes, self.size, self.commitment = num_codes, size, commitment
        init = initializers.uniform(-1.0 / num_codes, 1.0 / num_codes)
        self.w = tf.Variable(init(rng.fold("w"), [num_codes, size]), name="w")

    def __call__(self, x: tf.Tensor) -> Quantized:
        check_last(self, x, self.size, "size")
        codes = self.nearest(x)
        return Quantized(straight_through(x, tf.cast(tf.gather(self.w, codes), x.dtype)), codes)

    def nearest(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the code of the nearest vector for `x` [..., size]: [...]."""
        # -|x - w|² without |x|², which is the same for all codes. Centred, since squares far from zero lose digits.
        centre = tf.reduce_mean(self.w, 0)
        wide, w = tf.cast(x, tf.float32) - centre, self.w - centre
        scores = 2.0 * tf.tensordot(wide, w, [[-1], [1]]) - tf.reduce_sum(tf.square(w), 1)
        return tf.argmax(scores, -1, tf.int32)  # `argmin` has no layout on a mesh

    def entries(self, codes: tf.Tensor) -> tf.Tensor:
        return nan_unless((codes >= 0) & (codes < self.num_codes), tf.gather(self.w, codes))

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        """Returns |sg(x) − e|² + `commitment` |x − sg(e)|² of the nearest vector e: the paper's equation 3, per vector.

        The first term moves vectors of the code to inputs, the second inputs to the code: float32 [...].
        """
        wide, entry = tf.cast(x, tf.float32), tf.gather(self.w, self.nearest(x))
        to_input = tf.reduce_sum(tf.square(tf.stop_gradient(wide) - entry), -1)
        return to_input + self.commitment * tf.reduce_sum(tf.square(wide - tf.stop_gradient(entry)), -1)


class ScalarQuantizer(Module):
    """Applies `finite_scalars`: the code is fixed, so there is nothing to train."""

    def __init__(self, levels: Sequence[int]):
        super().__init__()
        _check_levels(levels)
        self.levels, self.size, self.num_codes = tuple(levels), len(levels), math.prod(levels)

    def __call__(self, x: tf.Tensor) -> Quantized:
        return finite_scalars(x, self.levels)

    def entries(self, codes: tf.Tensor) -> tf.Tensor:
        steps = codes[..., tf.newaxis] // _places(self.levels) % tf.constant(self.levels)
        vectors = tf.cast(steps, tf.float32) / _widths(self.levels) - 1.0
        return nan_unless((codes >= 0) & (codes < self.num_codes), vectors)

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        return tf.zeros(tf.shape(x)[:-1])


def finite_scalars(x: tf.Tensor, levels: Sequence[int]) -> Quantized:
    """Rounds each of the few values of a vector to one of its number of `levels` (FSQ: Mentzer et al., 2024).

    `x` is [..., size], with `size` numbers in `levels`. Value i becomes one of `levels[i]` evenly spaced values in [-1,
    1], the code a number below the product of `levels`. There are no parameters and no loss.
    """
    _check_levels(levels)
    if x.shape[-1] != len(levels):
        raise ValueError(f"`x` has shape {x.shape}, and `levels` {len(levels)} numbers; give one for each value.")
    counts = tf.constant(levels, tf.float32)
    # An even number of levels lies half a step below the odd ones; zero stays zero.
    half, offset = 0.5 * (counts - 1.0) * (1.0 + 1e-3), tf.constant([0.5 * (n % 2 == 0) for n in levels])
    bounded = tf.tanh(tf.cast(x, tf.float32) + tf.atanh(offset / half)) * half - offset
    steps = tf.round(bounded)
    width = _widths(levels)
    codes = tf.reduce_sum(tf.cast(steps + width, tf.int32) * _places(levels), -1)
    return Quantized(tf.cast(straight_through(bounded, steps) / width, x.dtype), codes)


def straight_through(x: tf.Tensor, rounded: tf.Tensor) -> tf.Tensor:
    """Returns `rounded`, with the gradient of `x`; `nan` where `x` isn't finite."""
    return tf.stop_gradient(rounded) + (x - tf.stop_gradient(x))  # exact, unlike x + (rounded - x)


@gin.configurable
def vector_quantizer(*, rng: Rng, num_codes: int = 64, size: int = 8, commitment: float = 0.25) -> VectorQuantizer:
    """Makes a `VectorQuantizer`. `commitment` weighs the distance of inputs from their codes."""
    return VectorQuantizer(num_codes, size, commitment=commitment, rng=rng)


@gin.configurable
def scalar_quantizer(*, rng: Rng, levels: Sequence[int] = (8, 8)) -> ScalarQuantizer:
    """Makes a `ScalarQuantizer` (FSQ), which has no weights and draws nothing."""
    return ScalarQuantizer(levels)


def _check_levels(levels: Sequence[int]) -> None:
    if min(levels, default=0) < 2:
        raise ValueError(f"`levels` is {list(levels)}; give at least 2 for each value, such as [8, 5, 5, 5].")


def _widths(levels: Sequence[int]) -> tf.Tensor:
    return tf.constant([n // 2 for n in levels], tf.float32)


def _places(levels: Sequence[int]) -> tf.Tensor:
    return tf.constant([math.prod(levels[:i]) for i in range(len(levels))])
