"""The Fréchet distance between generated and real examples, in a classifier's features."""

from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where
from core.metrics.state import weights_of
from core.random import Rng


def features_of(name: str, value: Any) -> tf.Tensor:
    """Returns `value` as float64, in which squares of float32 numbers are exact."""
    value = tf.cast(arguments.floats(name, value), tf.float64)
    if value.shape.rank != 2 or value.shape[1] is None:
        raise ValueError(
            f"`{name}` has shape {value.shape}; give features [rows, features], such as a classifier's last hidden "
            "layer, their number known: `tf.reshape`, `tf.ensure_shape`."
        )
    return value


class Frechet(NamedTuple):
    """The Fréchet distance of Gaussians fitted to two sets of features (Dowson and Landau, 1982; Heusel et al., 2017).

    For each set of features x, the state is one matrix Σ weight · zzᵀ with z = [1, x]. It holds the total weight, Σ x
    and Σ xxᵀ. The covariances divide by (total weight − 1), as in the paper's code, so each set needs two examples.
    """

    real: tf.Tensor  # [1 + features, 1 + features]
    fake: tf.Tensor

    @classmethod
    def of(cls, real: Any, fake: Any, weight: Any = None) -> "Frechet":
        """Adds up features [rows, features] of real and fake examples. `weight` [rows] applies to both.

        Without `weight`, `real` and `fake` may have different numbers of rows. Pass `features[:0]` to leave a set
        unchanged.
        """
        real, fake = features_of("real", real), features_of("fake", fake)
        if real.shape[1] != fake.shape[1]:
            raise ValueError(
                f"`fake` has shape {fake.shape}, but `real` {real.shape}: one network makes the features of both."
            )
        return cls(_products("real", real, weight), _products("fake", fake, weight))

    @classmethod
    def between_halves(cls, features: Any, *, seed: int = 0, splits: int = 10) -> tf.Tensor:
        """Returns the mean distance between random halves of `features` [rows, features], over `splits` splits.

        A perfect generator would have this distance. Compare it with a generator's distance for as many real and fake
        examples as a half has. If the number of rows is odd, each split omits one row.
        """
        features = features_of("features", features)
        if splits < 1:
            raise ValueError(f"`splits` is {splits}; it counts random splits in two: 10 make the mean steady.")
        rng, half = Rng.from_seed(seed).wide, tf.shape(features)[0] // 2
        distances = []
        for split in range(splits):
            order = tf.argsort(rng.fold(split).uniform(tf.shape(features)[:1]))
            shuffled = tf.gather(features, order)
            distances.append(cls.of(shuffled[:half], shuffled[half : 2 * half]).result())
        return tf.add_n(distances) / splits

    def result(self) -> tf.Tensor:
        """Returns ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), with means μ and covariances Σ of real and fake features."""
        sane = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) & (x[0, 0] > 1.0) for x in self])
        # An eigendecomposition raises on non-finite input, so it gets a finite stand-in.
        (mean_1, cov_1), (mean_2, cov_2) = (_gaussian(tf.where(sane, x, 2.0 * tf.ones_like(x))) for x in self)
        # Σ₁Σ₂ has the eigenvalues of the symmetric FᵀΣ₂F, for any F with Σ₁ = FFᵀ.
        values, vectors = tf.linalg.eigh(cov_1)
        factor = vectors * _root(values)
        overlap = tf.reduce_sum(_root(tf.linalg.eigvalsh(tf.matmul(factor, cov_2 @ factor, transpose_a=True))))
        distance = tf.reduce_sum(tf.square(mean_1 - mean_2)) + tf.linalg.trace(cov_1 + cov_2) - 2.0 * overlap
        distance = tf.maximum(distance, 0.0)  # that of equal sets is zero up to rounding
        return tf.cast(tf.where(sane, distance, nan(distance.dtype)), tf.float32)


def _products(name: str, features: tf.Tensor, weight: Any) -> tf.Tensor:
    weights = weights_of(features[:, 0], name, weight)[:, tf.newaxis]
    rows = tf.concat([tf.ones_like(features[:, :1]), features], axis=1)
    rows = zero_where(tf.equal(weights, 0.0), rows)
    return tf.matmul(weights * rows, rows, transpose_a=True)


def _gaussian(products: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    weight, total = products[0, 0], products[0, 1:]
    mean = total / weight
    return mean, (products[1:, 1:] - mean[:, tf.newaxis] * total) / (weight - 1.0)


def _root(eigenvalues: tf.Tensor) -> tf.Tensor:
    """Returns square roots of `eigenvalues`. Negative ones are rounding errors, and count as zero."""
    return tf.sqrt(tf.maximum(eigenvalues, 0.0))
