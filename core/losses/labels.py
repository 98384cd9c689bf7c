"""Labels that are ignored, or make no sense: both without a gradient, and without an assertion, which XLA drops."""

import functools
from typing import Any

import tensorflow as tf

from core.arguments import floats, targets_like
from core.choice import nan, zero_where


def binary(
    logits: Any, labels: Any, ignore: int | None, *, soft: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Returns logits, their labels as floats (`nan` where not 0 or 1; `soft`: not in [0, 1]), and which are ignored.

    Where a label is ignored, label and logit are replaced by zero: a zero gradient times a logit that isn't finite
    would still be `nan`.
    """
    logits = floats("logits", logits)
    labels = targets_like("labels", labels, "logits", logits)
    ignored = None if ignore is None else tf.equal(labels, tf.cast(ignore, labels.dtype))
    labels, logits = zero_where(ignored, labels), zero_where(ignored, logits)
    valid = (labels >= 0.0) & (labels <= 1.0) if soft else tf.equal(labels, 0.0) | tf.equal(labels, 1.0)
    return held_where(~valid, logits), tf.where(valid, labels, nan(labels.dtype)), ignored


def held_where(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns `value` as it is, without a gradient where `condition` holds.

    There a loss isn't finite, and a weight of zero, which keeps that out of the sum, would make 0 · ∞ of its slope.
    """
    return tf.where(condition, tf.stop_gradient(value), value)


def held_unless_finite(*values: tf.Tensor) -> list[tf.Tensor]:
    """Returns vectors [..., size] as they are, without a gradient where one of them isn't finite."""
    finite = [tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True) for x in values]
    return [held_where(~functools.reduce(tf.logical_and, finite), x) for x in values]


def share_of(value: tf.Tensor, share: Any) -> tf.Tensor:
    """Returns `share * value`, where no share of an infinity is zero, without a gradient; of a NaN it is a NaN."""
    return share * zero_where(tf.equal(share, 0.0) & tf.math.is_inf(value), value)
