"""Sums, moments and affine maps per channel, the last axis. Their gradients make few passes over a batch."""

import math
from typing import Any

import tensorflow as tf

from core.tracing import only_cpus

_LONG = 4096  # a merged row has at most twice as many numbers, unless it is a single row


def channel_sums(x: tf.Tensor, *, merge: bool) -> tf.Tensor:
    """Returns the sums [channels] of `x` [..., channels], which has fewer than 2³¹ numbers.

    `merge` allows reshapes, which sharded axes forbid.
    """
    *leading, channels = x.shape
    if not merge or not leading or not only_cpus():
        return tf.reduce_sum(x, list(range(len(leading))))
    # The gradient of a bias is such a sum, in a kernel that is several times faster on CPUs than `reduce_sum`. It adds
    # rows one after another, so rows are merged as far as their number is known: fewer and longer ones round less.
    merged = math.gcd(math.prod(size for size in leading if size is not None), 2 ** (_LONG // channels).bit_length())
    sums = tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(x, [-1, merged * channels]))
    return tf.reduce_sum(tf.reshape(sums, [merged, channels]), 0)


def channel_moments(x: tf.Tensor, *, merge: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean and variance [channels] of `x` [..., channels], or zeros if it is empty.

    The mean must be at most a few deviations, so that squares don't cancel.
    """

    @tf.custom_gradient
    def run(x: tf.Tensor) -> Any:
        count = tf.cast(tf.maximum(tf.size(x, tf.int64) // x.shape[-1], 1), x.dtype)
        mean = channel_sums(x, merge=merge) / count
        variance = channel_sums(tf.square(x), merge=merge) / count - tf.square(mean)

        def gradient(dmean: tf.Tensor, dvariance: tf.Tensor) -> tf.Tensor:
            slope = tf.where(variance >= 0.0, 2.0 * dvariance, 0.0) / count
            return channel_affine(x, slope, dmean / count - slope * mean, merge=merge)

        return (mean, tf.maximum(variance, 0.0)), gradient

    return run(x)


def channel_affine(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, *, merge: bool) -> tf.Tensor:
    """Returns `x * factor + shift` for `x` [..., channels], and `factor` and `shift` [channels]."""

    @tf.custom_gradient
    def run(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> Any:
            return dy * factor, channel_sums(dy * x, merge=merge), channel_sums(dy, merge=merge)

        return x * factor + shift, gradient

    return run(x, factor, shift)
