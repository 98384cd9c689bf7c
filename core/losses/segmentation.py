"""Losses over masks: Dice."""

from typing import Any

import tensorflow as tf

from core import arguments
from core.choice import zero_where
from core.losses.labels import binary, held_where


def dice(logits: Any, labels: Any, *, smooth: float = 1.0, ignore: int | None = None) -> tf.Tensor:
    """Returns 1 − (2 Σ p · labels + smooth) / (Σ p + Σ labels + smooth), with p = σ(logits), per example.

    The sums run over all axes of [batch, ...] except the first (Milletari et al., 2016, who square the denominator's
    terms). Labels are 0 or 1. Values with the label `ignore` are excluded from the sums; any other label gives `nan`.
    If prediction and labels are all zero, the loss is zero.
    """
    arguments.check_positive(smooth=smooth)
    arguments.floats("logits", logits, min_rank=2, axes="[batch, ...]")
    logits, labels, ignored = binary(logits, labels, ignore)
    axes = tf.range(1, tf.rank(logits)) if logits.shape.rank is None else list(range(1, logits.shape.rank))
    unlabelled = tf.reduce_any(tf.math.is_nan(labels), axis=axes, keepdims=True)
    logits, labels = held_where(unlabelled, logits), held_where(unlabelled, labels)
    p = zero_where(ignored, tf.sigmoid(logits))
    overlap = tf.reduce_sum(p * labels, axis=axes)
    total = tf.reduce_sum(p, axis=axes) + tf.reduce_sum(labels, axis=axes)
    return 1.0 - (2.0 * overlap + smooth) / (total + smooth)
