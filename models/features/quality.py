"""Measures of generated images, from their features and those of real images."""

from typing import Any

import tensorflow as tf

from core import metrics

SUBSET, NEIGHBOURS = 1000, 3  # the papers'


def image_quality(real: Any, fake: Any) -> dict[str, float]:
    """Returns `fid`, `kid`, `precision` and `recall` of features [rows, features] of real and generated images.

    In the features of `Inception`, `fid` and `kid` are comparable with published values for as many images.
    """
    subset = min(SUBSET, len(real), len(fake))
    return {
        "fid": float(metrics.Frechet.of(real, fake).result()),
        "kid": float(metrics.kernel_distance(real, fake, subset_size=subset)),
        "precision": float(tf.reduce_mean(metrics.in_manifold(fake, real, k=NEIGHBOURS))),
        "recall": float(tf.reduce_mean(metrics.in_manifold(real, fake, k=NEIGHBOURS))),
    }
