"""Ignored and invalid labels: both without a gradient, and without assertions, which XLA drops."""

import functools
from typing import Any

import tensorflow as tf

from core.arguments import floats, targets_like
from core.choice import nan, zero_where


def binary(
    logits: Any, labels: Any, ignore: int | None, *, soft: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Returns logits, labels as floats (`nan` if not 0 or 1; with `soft`, if not in [0, 1]), and the ignored ones.

    At an ignored label, label and logit are replaced by zero: a zero gradient times a non-finite logit would still be
    `nan`.
    """
    logits = floats("logits", logits)
    labels = targets_like("labels", labels, "logits", logits)
    ignored = None if ignore is None else tf.equal(labels, tf.cast(ignore, labels.dtype))
    labels, logits = zero_where(ignored, labels), zero_where(ignored, logits)
    valid = (labels >= 0.0) & (labels <= 1.0) if soft else tf.equal(labels, 0.0) | tf.equal(labels, 1.0)
    return held_where(~valid, logits), tf.where(valid, labels, nan(labels.dtype)), ignored


def held_where(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, without a gradient where `condition` holds.

    The loss isn't finite there. A weight of zero excludes it from the sum, but its gradient would be 0 · ∞.
    """
    return tf.where(condition, tf.stop_gradient(value), value)


def held_unless_finite(*values: tf.Tensor) -> list[tf.Tensor]:
    """Returns vectors [..., size] unchanged, without a gradient where one of them isn't finite."""
    finite = [tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True) for x in values]
    return [held_where(~functools.reduce(tf.logical_and, finite), x) for x in values]


def share_of(value: tf.Tensor, share: Any) -> tf.Tensor:
    """Returns `share * value`. A zero share of infinity is zero, without a gradient; a share of NaN is NaN."""
    return share * zero_where(tf.equal(share, 0.0) & tf.math.is_inf(value), value)
