"""The Gaussian error linear unit (Hendrycks and Gimpel, 2016), with a gradient in few passes."""

import math
from typing import Any

import tensorflow as tf

from core.layers.shapes import check_floats, widen

_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns x · Φ(x) in the paper's tanh approximation, where Φ is the normal distribution function."""
    check_floats("gelu", x)
    return _gelu(x) if x.dtype.size >= 4 else _half_gelu(x)


@tf.custom_gradient
def _gelu(x: tf.Tensor) -> Any:
    # σ in place of tanh is equivalent and needs fewer passes.
    square = tf.square(x)
    sigmoid = tf.sigmoid(x * (_LINEAR + _CUBIC * square))

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        bend = tf.raw_ops.SigmoidGrad(y=sigmoid, dy=dy * x)
        return dy * sigmoid + bend * (_LINEAR + 3.0 * _CUBIC * square)

    return x * sigmoid, gradient


@tf.custom_gradient
def _half_gelu(x: tf.Tensor) -> Any:
    """Computes `gelu` of half precision in float32, where squares don't overflow; stores only `x` for the gradient."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        wide = widen(x)
        with tf.GradientTape() as tape:
            tape.watch(wide)
            y = _gelu(wide)
        return tf.cast(tape.gradient(y, wide, widen(dy)), x.dtype)

    return tf.cast(_gelu(widen(x)), x.dtype), gradient
