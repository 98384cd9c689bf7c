"""Classifier-free guidance (Ho and Salimans, 2021): one network learns images of a class, and images of any class."""

import tensorflow as tf

from core.random import Rng


def labels_dropped(label: tf.Tensor, rng: Rng, *, rate: float, none: int) -> tf.Tensor:
    """Replaces each of `label` [rows] by the class `none` with probability `rate`."""
    return tf.where(rng.wide.rows.uniform(label.shape[0]) < rate, tf.cast(none, label.dtype), label)


def guided(of_class: tf.Tensor, of_any: tf.Tensor, scale: float) -> tf.Tensor:
    """Returns what the denoiser sees, moved away from `of_any` class by `scale`. A scale of 1 gives `of_class`."""
    return of_any + scale * (of_class - of_any)
