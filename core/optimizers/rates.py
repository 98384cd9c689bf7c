"""Rates that may be schedules, and arithmetic that rules share."""

import math

import tensorflow as tf

from core.optimizers.transform import Rate, Schedule


def rate_at(rate: float | Schedule, step: tf.Tensor) -> float | tf.Tensor:
    """Returns `rate(step)` for a schedule; a constant rate is returned as a Python number."""
    return rate(step) if callable(rate) else rate


def times(factor: Rate | None, rate: Rate) -> Rate:
    """Returns `factor * rate`, or `rate` itself if `factor` is None: multiplying by 1.0 would change the graph."""
    return rate if factor is None else factor * rate


def updates_after(step: tf.Tensor) -> tf.Tensor:
    """Returns `step + 1` as float32: the t of the papers, 1 for the first update."""
    return tf.cast(step + 1, tf.float32)


def weight_seen(beta: Rate, t: tf.Tensor) -> tf.Tensor:
    """Returns 1 - β^t, by which the bias correction divides a moving average of t values that starts at zero."""
    if isinstance(beta, tf.Tensor):
        return -tf.math.expm1(t * tf.cast(tf.math.log(beta), t.dtype))
    # As a float32 difference it would be off by 7e-4 of itself for β = 0.99999, whose rounding is 1e-3 of 1 - β.
    return -tf.math.expm1(t * math.log(beta)) if beta else tf.ones([])


def newest_share(t: tf.Tensor, beta: Rate) -> tf.Tensor:
    """Returns the share of the newest of t values in a debiased moving average."""
    return (1.0 - beta) / weight_seen(beta, t)


def as_dtype(scalar: float | tf.Tensor, tensor: tf.Tensor) -> float | tf.Tensor:
    """Casts `scalar` to the dtype of `tensor`; a Python number is returned as it is."""
    return tf.cast(scalar, tensor.dtype) if isinstance(scalar, tf.Tensor) else scalar
