"""How far images are from what they should be."""

from typing import NamedTuple

import tensorflow as tf

from core import losses
from core.metrics.state import ratio


def mean_distance(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """The mean absolute difference of each row's pixels."""
    return tf.reduce_mean(losses.absolute_error(images, targets), axis=[1, 2, 3])


def share(judged: tf.Tensor) -> tf.Tensor:
    """The share of each row's patches that are so judged."""
    return tf.reduce_mean(tf.cast(judged, tf.float32), axis=[1, 2, 3])


class Ratio(NamedTuple):
    """A mean over examples in units of another: of errors, say, and of the errors of doing nothing."""

    total: tf.Tensor
    unit: tf.Tensor

    @classmethod
    def of(cls, values: tf.Tensor, units: tf.Tensor) -> "Ratio":
        """From one value and one unit per example."""
        return cls(*(tf.reduce_sum(tf.cast(x, tf.float64)) for x in (values, units)))

    def result(self) -> tf.Tensor:
        """Σ value / Σ unit."""
        return ratio(self.total, self.unit)
