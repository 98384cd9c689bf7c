"""Errors of numeric predictions."""

from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.choice import zero_where
from core.losses.regression import absolute_error, squared_error
from core.metrics.exact import Moments, moments, squared_deviations
from core.metrics.state import ratio, weighted_mean, weighted_sum, weights_of


class MAE(NamedTuple):
    """The mean absolute error."""

    total: tf.Tensor
    weight: tf.Tensor

    @classmethod
    def of(cls, predictions: Any, targets: Any, weight: Any = None) -> "MAE":
        """Adds up errors of `predictions` and `targets`, which have one shape, with one weight per target."""
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
        """Adds up errors of `predictions` and `targets`, which have one shape, with one weight per target."""
        return cls(*weighted_mean(squared_error(predictions, targets), "predictions", weight))

    def result(self) -> tf.Tensor:
        """Returns √(Σ weight · (prediction − target)² / Σ weight)."""
        return tf.sqrt(ratio(self.total, self.weight))


class R2(NamedTuple):
    """The share of the targets' variance that the predictions explain (Wright, 1921). All elements count together."""

    weight: tf.Tensor  # sums of the targets, as in `Moments`
    total: tf.Tensor
    squares: tf.Tensor
    residual: tf.Tensor  # Σ weight · (prediction − target)²

    @classmethod
    def of(cls, predictions: Any, targets: Any, weight: Any = None) -> "R2":
        """Adds up errors of `predictions` and `targets`, which have one shape, with one weight per target."""
        residual = squared_error(predictions, targets)
        targets = tf.cast(arguments.targets_like("targets", targets, "predictions", residual), tf.float64)
        weights = weights_of(residual, "predictions", weight)
        seen = moments(zero_where(tf.equal(weights, 0.0), targets), weights)
        return cls(*seen, weighted_sum(residual, weights))

    def result(self) -> tf.Tensor:
        """Returns 1 − residual / Σ weight · (target − mean)²; `nan` if the targets don't vary."""
        return 1.0 - ratio(self.residual, squared_deviations(Moments(*self[:-1])))
