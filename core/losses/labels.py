"""Handling of ignored and invalid labels: they cause no gradient. (No assertions, since XLA drops them.)"""

import functools
from typing import Any

import tensorflow as tf

from core.arguments import floats, targets_like
from core.choice import nan, zero_where


def binary(
    logits: Any, labels: Any, ignore: int | None, *, soft: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Returns `(logits, labels, ignored)`: labels are floats, and `ignored` is a mask, or `None` without `ignore`.

    Invalid labels become `nan`: those other than 0 and 1, or with `soft`, those outside [0, 1]. At ignored labels,
    label and logit become zero, because a zero gradient times a non-finite logit would be `nan`.
    """
    logits = floats("logits", logits)
    labels = targets_like("labels", labels, "logits", logits)
    ignored = None if ignore is None else tf.equal(labels, tf.cast(ignore, labels.dtype))
    labels, logits = zero_where(ignored, labels), zero_where(ignored, logits)
    valid = (labels >= 0.0) & (labels <= 1.0) if soft else tf.equal(labels, 0.0) | tf.equal(labels, 1.0)
    return held_where(~valid, logits), tf.where(valid, labels, nan(labels.dtype)), ignored


def held_where(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, without a gradient where `condition` is true.

    Use it where the loss isn't finite. A weight of zero excludes such a loss, but its gradient would be 0 · ∞ = `nan`.
    """
    return tf.where(condition, tf.stop_gradient(value), value)


def held_unless_finite(*values: tf.Tensor) -> list[tf.Tensor]:
    """Returns `values` [..., size]; a vector that isn't finite in one of them gets no gradient."""
    finite = [tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True) for x in values]
    return [held_where(~functools.reduce(tf.logical_and, finite), x) for x in values]


def share_of(value: tf.Tensor, share: Any) -> tf.Tensor:
    """Returns `share * value`, where 0 · ∞ is zero without a gradient; a NaN in `value` stays NaN."""
    return share * zero_where(tf.equal(share, 0.0) & tf.math.is_inf(value), value)
