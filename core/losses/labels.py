"""Masks for ignored and invalid labels, which cause no gradient. (XLA drops assertions, so there are none.)"""

import functools
from typing import Any

import tensorflow as tf

from core.arguments import floats, targets_like
from core.choice import nan, zero_where


def binary(
    logits: Any, labels: Any, ignore: int | None, *, soft: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Returns `(logits, labels, ignored)`: labels are floats, and `ignored` is a mask, or `None` without `ignore`.

    Labels other than 0 and 1 become `nan`; with `soft`, only labels outside [0, 1] do. At ignored labels, label and
    logit become zero, because a zero gradient times a non-finite logit would be `nan`.
    """
    logits = floats("logits", logits)
    labels = targets_like("labels", labels, "logits", logits)
    ignored = None if ignore is None else tf.equal(labels, tf.cast(ignore, labels.dtype))
    labels, logits = zero_where(ignored, labels), zero_where(ignored, logits)
    valid = (labels >= 0.0) & (labels <= 1.0) if soft else tf.equal(labels, 0.0) | tf.equal(labels, 1.0)
    return held_where(~valid, logits), tf.where(valid, labels, nan(labels.dtype)), ignored


def held_where(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, without a gradient where `condition` is true.

    Use it where the loss isn't finite. There, a weight of zero alone would give the gradient 0 · ∞ = `nan`.
    """
    return tf.where(condition, tf.stop_gradient(value), value)


def held_unless_finite(*values: tf.Tensor) -> list[tf.Tensor]:
    """Returns `values` [..., size]. A vector that isn't finite in one of them gets no gradient in any."""
    finite = [tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True) for x in values]
    return [held_where(~functools.reduce(tf.logical_and, finite), x) for x in values]


def share_of(value: tf.Tensor, share: Any) -> tf.Tensor:
    """Returns `share * value`. Zero times infinity is zero, without a gradient; a NaN in `value` stays NaN."""
    return share * zero_where(tf.equal(share, 0.0) & tf.math.is_inf(value), value)
