"""Gradient noise scale: the batch size above which larger batches hardly help (McCandlish et al., 2018)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.metrics.state import ratio
from core.optimizers.norms import global_norm


class NoiseScale(NamedTuple):
    """B = tr(Σ) / |G|² of appendix A.1: sums over steps of unbiased estimates of both, so that their ratio is stable.

    Σ is the covariance of the gradient of one example (of one token, if the loss has a weight per token), and G is
    the true gradient. A step has the gradients of its `parts`, one for each microbatch of each replica, and their mean.
    """

    variance: tf.Tensor  # tr(Σ)
    square: tf.Tensor  # |G|²

    @classmethod
    def of(cls, of_parts: tf.Tensor, norm: tf.Tensor, weight: tf.Tensor, *, parts: int) -> "NoiseScale":
        """Returns a step's estimates from Σ |g|² over its `parts`, the norm of the mean gradient, and the weight."""
        small, big = of_parts / parts, tf.square(tf.cast(norm, tf.float32))
        return cls(weight * (small - big) / (parts - 1), (parts * big - small) / (parts - 1))

    def result(self) -> tf.Tensor:
        """Returns B, in examples or tokens; `nan` if no step was measured."""
        return ratio(self.variance, self.square)


def square_of_part(gradients: Mapping[str, Any], divisor: tf.Tensor) -> tf.Tensor:
    """Returns |g / divisor|², float32, of all gradients of a microbatch together; 0 for a `divisor` of 0."""
    share = tf.math.divide_no_nan(1.0, tf.cast(divisor, tf.float32))
    norm = global_norm({path: tf.convert_to_tensor(g) for path, g in gradients.items()})
    return tf.square(share * tf.cast(norm, tf.float32))
