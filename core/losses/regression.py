"""Losses between predictions and targets of one shape: one value per element.

For rows of several elements, the step function sums or averages over their axes to get one value per example:
`tf.reduce_mean(losses.squared_error(images, targets), axis=[1, 2, 3])`.
"""

import math
from typing import Any

import tensorflow as tf

from core import arguments
from core.losses.labels import held_where


def squared_error(predictions: Any, targets: Any) -> tf.Tensor:
    """Returns (predictions − targets)²."""
    return tf.square(_difference(predictions, targets))


def absolute_error(predictions: Any, targets: Any) -> tf.Tensor:
    """Returns |predictions − targets|."""
    return tf.abs(_difference(predictions, targets))


def huber(predictions: Any, targets: Any, *, delta: float = 1.0) -> tf.Tensor:
    """Returns d²/2 for d = predictions − targets if |d| ≤ δ, else δ(|d| − δ/2), with δ = `delta` (Huber, 1964).

    PyTorch's `smooth_l1_loss` is this loss divided by `delta`.
    """
    arguments.check_positive(delta=delta)
    distance = tf.abs(_difference(predictions, targets))
    near = tf.minimum(distance, delta)
    return 0.5 * tf.square(near) + delta * (distance - near)


def log_cosh(predictions: Any, targets: Any) -> tf.Tensor:
    """Returns log cosh(predictions − targets): about d²/2 near zero and |d| − log 2 far away."""
    difference = _difference(predictions, targets)
    # cosh d - 1 is -expm1(d) expm1(-d) / 2, a product that keeps the digits of a small d. For a large d, the logarithm
    # avoids an overflow.
    near = tf.clip_by_value(difference, -1.0, 1.0)
    distance = tf.abs(difference)
    return tf.where(
        distance < 1.0,
        tf.math.log1p(-0.5 * tf.math.expm1(near) * tf.math.expm1(-near)),
        distance + tf.math.softplus(-2.0 * distance) - math.log(2.0),
    )


def _difference(predictions: Any, targets: Any) -> tf.Tensor:
    predictions = arguments.floats("predictions", predictions)
    difference = predictions - arguments.targets_like("targets", targets, "predictions", predictions)
    return held_where(~tf.math.is_finite(difference), difference)
