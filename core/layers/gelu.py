"""The Gaussian error linear unit (Hendrycks and Gimpel, 2016), with a gradient in few passes."""

import math
from typing import Any

import tensorflow as tf

from core.layers.shapes import check_floats

_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` times the normal distribution function of `x`, in the paper's tanh approximation."""
    check_floats("gelu", x)
    return _gelu(x)


@tf.custom_gradient
def _gelu(x: tf.Tensor) -> Any:
    # σ in place of tanh is equivalent and needs fewer passes.
    square = tf.square(x)
    sigmoid = tf.sigmoid(x * (_LINEAR + _CUBIC * square))

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        bend = tf.raw_ops.SigmoidGrad(y=sigmoid, dy=dy * x)
        return dy * sigmoid + bend * (_LINEAR + 3.0 * _CUBIC * square)

    return x * sigmoid, gradient
