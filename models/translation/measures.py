"""How far images are from what they should be."""

from typing import NamedTuple

import tensorflow as tf

from core import losses
from core.metrics.state import ratio


def mean_distance(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the mean absolute difference of each row's pixels."""
    return tf.reduce_mean(losses.absolute_error(images, targets), axis=[1, 2, 3])


class Ratio(NamedTuple):
    """Holds sums whose ratio is a mean in units of another: of errors, say, in units of the errors of doing nothing."""

    total: tf.Tensor
    unit: tf.Tensor

    @classmethod
    def of(cls, values: tf.Tensor, units: tf.Tensor) -> "Ratio":
        """Adds up one value and one unit per example."""
        return cls(*(tf.reduce_sum(tf.cast(x, tf.float64)) for x in (values, units)))

    def result(self) -> tf.Tensor:
        """Returns Σ value / Σ unit."""
        return ratio(self.total, self.unit)
