"""Fidelity and diversity of generated samples, measured separately: precision and recall of manifolds, and classes."""

from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where
from core.metrics.state import poisoned, weights_of


def in_manifold(features: Any, reference: Any, *, k: int = 3) -> tf.Tensor:
    """Returns 1.0 for each row of `features` within the manifold of `reference`, else 0.0; `nan` if not finite.

    `features` and `reference` are [rows, features]. The manifold is a union of balls around the rows of `reference`.
    The radius of a ball is the distance to the row's k-th nearest neighbour in `reference` (Kynkäänniemi et al., 2019).
    The paper's *precision* is the mean for fakes, with real examples as reference. Its *recall* is the mean for real
    examples, with fakes as reference:

        precision = tf.reduce_mean(in_manifold(fake, real))
        recall = tf.reduce_mean(in_manifold(real, fake))

    Pass the *whole* reference, for example as a constant of the task. Manifolds of batches don't add up, so there is no
    additive state: gather all batches of a reference first.
    """
    features = arguments.floats("features", features, min_rank=2, axes="[rows, features]")
    reference = arguments.floats("reference", reference, min_rank=2, axes="[rows, features]")
    if not features.shape[1:].is_compatible_with(reference.shape[1:]):
        raise ValueError(
            f"`reference` has shape {reference.shape}, but `features` {features.shape}: one network makes both."
        )
    size = reference.shape[0]
    if k < 1 or (size is not None and size <= k):
        raise ValueError(
            f"`k` is {k}, but `reference` has {size} rows, each with one neighbour less; give more, or k=3."
        )
    between = _squared_distances(reference, reference)
    between = tf.linalg.set_diag(between, tf.zeros_like(between[0]))
    # The nearest row to a row is itself, so its k-th neighbour comes after it.
    radii = -tf.math.top_k(-between, k + 1).values[:, k]
    inside = tf.reduce_any(_squared_distances(features, reference) <= radii, axis=1)
    sane = tf.reduce_all(tf.math.is_finite(features), axis=1) & tf.reduce_all(tf.math.is_finite(reference))
    return tf.where(sane, tf.cast(inside, tf.float32), nan(tf.float32))


def _squared_distances(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns ‖a‖² + ‖b‖² − 2 a·b [rows of a, rows of b]. Pass float64, because the difference cancels digits."""
    a, b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    squares_a, squares_b = (tf.reduce_sum(tf.square(x), axis=1) for x in (a, b))
    return squares_a[:, tf.newaxis] + squares_b - 2.0 * tf.matmul(a, b, transpose_b=True)


class ClassCoverage(NamedTuple):
    """The number of classes that a classifier finds among samples. A collapsed generator makes only a few."""

    counts: tf.Tensor  # [classes]

    @classmethod
    def of(cls, predictions: Any, num_classes: int, weight: Any = None) -> "ClassCoverage":
        """Counts class indices of any shape, such as `predicted(logits)`. An index out of range gives `nan`."""
        if num_classes < 1:
            raise ValueError(f"`num_classes` is {num_classes}; it is at least 1.")
        predictions = arguments.integers("predictions", predictions)
        weights = weights_of(predictions, "predictions", weight)
        valid = (predictions >= 0) & (predictions < num_classes)
        counts = tf.math.unsorted_segment_sum(weights, zero_where(~valid, predictions), num_classes)
        return cls(poisoned(counts, valid | tf.equal(weights, 0.0)))

    def result(self) -> tf.Tensor:
        """Returns the number of classes that appear."""
        appear = tf.reduce_sum(tf.cast(self.counts > 0.0, tf.float32))
        return tf.where(tf.reduce_sum(self.counts) > 0.0, appear, nan(tf.float32))
