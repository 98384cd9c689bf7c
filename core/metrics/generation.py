"""Fidelity and diversity of generated samples, measured separately: manifolds, classes, and codes of a quantiser."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where
from core.metrics.state import poisoned, weights_of

_TOGETHER = 2048  # rows whose distances are computed at once


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
    reference = tf.cast(reference, tf.float64)
    radii = _by_parts(lambda part, first: _radii(part, first, reference, k), reference)
    inside = _by_parts(lambda x, _: tf.reduce_any(_squared_distances(x, reference) <= radii, axis=1), features)
    sane = tf.reduce_all(tf.math.is_finite(features), axis=1) & tf.reduce_all(tf.math.is_finite(reference))
    return tf.where(sane, tf.cast(inside, tf.float32), nan(tf.float32))


def _radii(part: tf.Tensor, first: int, reference: tf.Tensor, k: int) -> tf.Tensor:
    """Returns the squared distances from the rows of `reference` in `part`, from number `first` on, to a neighbour."""
    between = _squared_distances(part, reference)
    between = tf.linalg.set_diag(between, tf.zeros(tf.shape(between)[:1], between.dtype), k=first)
    # The nearest row to a row is itself, so its k-th neighbour comes after it.
    return -tf.math.top_k(-between, k + 1).values[:, k]


def _by_parts(fn: Callable[[tf.Tensor, int], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns `fn(x, 0)`, computed from parts of many rows: their distances don't fit into memory together."""
    rows = x.shape[0] or 0
    if rows <= _TOGETHER:
        return fn(x, 0)
    return tf.concat([fn(x[first : first + _TOGETHER], first) for first in range(0, rows, _TOGETHER)], axis=0)


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
        return cls(_counts("predictions", predictions, "num_classes", num_classes, weight))

    def result(self) -> tf.Tensor:
        """Returns the number of classes that appear."""
        appear = tf.reduce_sum(tf.cast(self.counts > 0.0, tf.float32))
        return tf.where(tf.reduce_sum(self.counts) > 0.0, appear, nan(tf.float32))


class CodeUsage(NamedTuple):
    """How many codes of a quantiser are in use: exp of the entropy of their shares, the perplexity of the code.

    It is the number of codes if all are equally frequent, and 1 if one is used alone.
    """

    counts: tf.Tensor  # [codes]

    @classmethod
    def of(cls, codes: Any, num_codes: int, weight: Any = None) -> "CodeUsage":
        """Counts integer codes of any shape. A code out of range gives `nan`."""
        return cls(_counts("codes", codes, "num_codes", num_codes, weight))

    def result(self) -> tf.Tensor:
        """Returns exp(−Σ p log p) for the shares p of the codes."""
        shares = tf.math.divide_no_nan(self.counts, tf.reduce_sum(self.counts))
        # `xlogy` is 0 for a code that isn't in use.
        used = tf.exp(-tf.reduce_sum(tf.math.xlogy(shares, shares)))
        return tf.where(tf.reduce_sum(self.counts) > 0.0, tf.cast(used, tf.float32), nan(tf.float32))


def _counts(name: str, indices: Any, limit: str, count: int, weight: Any) -> tf.Tensor:
    """Returns the sum of weights of each index below `count`; all are `nan` if an index that counts is out of range."""
    if count < 1:
        raise ValueError(f"`{limit}` is {count}; it is at least 1.")
    indices = arguments.integers(name, indices)
    weights = weights_of(indices, name, weight)
    valid = (indices >= 0) & (indices < count)
    counts = tf.math.unsorted_segment_sum(weights, zero_where(~valid, indices), count)
    return poisoned(counts, valid | tf.equal(weights, 0.0))
