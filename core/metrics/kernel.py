"""The kernel distance between generated and real examples, in a network's features."""

from typing import Any

import tensorflow as tf

from core import arguments
from core.metrics.frechet import features_of
from core.random import Rng


def kernel_distance(real: Any, fake: Any, *, subsets: int = 100, subset_size: int = 1000, seed: int = 0) -> tf.Tensor:
    """Returns the squared maximum mean discrepancy of two sets of features [rows, features] (Bińkowski et al., 2018).

    In the features of Inception V3 it is KID. The kernel is (x·y / features + 1)³. The result is the mean over
    `subsets` random subsets of both sets, of `subset_size` rows each. Each estimate is without bias, so the distance of
    equal distributions is around zero, and may be negative. As for `in_manifold`, there is no additive state.
    """
    real, fake = features_of("real", real), features_of("fake", fake)
    arguments.check_size(subsets=subsets)
    sizes = [x.shape[0] for x in (real, fake)]
    if not 2 <= subset_size <= min(size for size in (*sizes, subset_size) if size is not None):
        raise ValueError(
            f"`subset_size` is {subset_size}, but `real` has {sizes[0]} rows and `fake` {sizes[1]}; a subset has at "
            "least 2 rows, and at most all."
        )
    rng, estimates = Rng.from_seed(seed).fold("subsets").wide, []
    for i in range(subsets):
        x, y = (_subset(rng.fold(2 * i + j), features, subset_size) for j, features in enumerate((real, fake)))
        estimates.append(_among(x) + _among(y) - 2.0 * tf.reduce_mean(_kernel(x, y)))
    return tf.cast(tf.add_n(estimates) / subsets, tf.float32)


def _subset(rng: Rng, features: tf.Tensor, size: int) -> tf.Tensor:
    return tf.gather(features, tf.argsort(rng.uniform(tf.shape(features)[:1]))[:size])


def _kernel(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return (tf.matmul(x, y, transpose_b=True) / x.shape[1] + 1.0) ** 3


def _among(x: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the kernel over pairs of different rows."""
    kernel, rows = _kernel(x, x), tf.cast(tf.shape(x)[0], x.dtype)
    return (tf.reduce_sum(kernel) - tf.linalg.trace(kernel)) / (rows * (rows - 1.0))
