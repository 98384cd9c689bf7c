"""How far predictions are from numbers."""

from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.losses.labels import zero_where
from core.losses.regression import absolute_error, squared_error
from core.metrics.state import ratio, weighted_mean, weighted_sum, weights_of


class MAE(NamedTuple):
    """The mean absolute error."""

    total: tf.Tensor
    weight: tf.Tensor

    @classmethod
    def of(cls, predictions: Any, targets: Any, weight: Any = None) -> "MAE":
        """Counts from predictions and targets of any one shape, and one weight for each."""
        return cls(*weighted_mean(absolute_error(predictions, targets), "predictions", weight))

    def result(self) -> tf.Tensor:
        """Returns Σ weight · |prediction − target| / Σ weight."""
        return ratio(self.total, self.weight)


class RMSE(NamedTuple):
    """The root of the mean squared error."""

    total: tf.Tensor
    weight: tf.Tensor

    @classmethod
    def of(cls, predictions: Any, targets: Any, weight: Any = None) -> "RMSE":
        """Counts from predictions and targets of any one shape, and one weight for each."""
        return cls(*weighted_mean(squared_error(predictions, targets), "predictions", weight))

    def result(self) -> tf.Tensor:
        """Returns √(Σ weight · (prediction − target)² / Σ weight)."""
        return tf.sqrt(ratio(self.total, self.weight))


class R2(NamedTuple):
    """The share of the targets' variance that the predictions explain (Wright, 1921)."""

    weight: tf.Tensor
    total: tf.Tensor  # Σ weight · target
    squares: tf.Tensor  # Σ weight · target²
    residual: tf.Tensor  # Σ weight · (prediction − target)²

    @classmethod
    def of(cls, predictions: Any, targets: Any, weight: Any = None) -> "R2":
        """Counts from predictions and targets of any one shape, and one weight for each."""
        residual = squared_error(predictions, targets)
        targets = tf.cast(arguments.targets_like("targets", targets, "predictions", residual), tf.float64)
        weights = weights_of(residual, "predictions", weight)
        sums = (weighted_sum(x, weights) for x in (targets, tf.square(targets), residual))
        return cls(tf.reduce_sum(weights), *sums)

    def result(self) -> tf.Tensor:
        """Returns 1 − residual / Σ weight · (target − mean)²; `nan` where the targets don't vary."""
        spread = self.squares - tf.math.divide_no_nan(tf.square(self.total), self.weight)
        # What is left of equal targets after the subtraction is rounding, not variance.
        spread = zero_where(spread <= 1e-13 * self.squares, spread)
        return 1.0 - ratio(self.residual, spread)
