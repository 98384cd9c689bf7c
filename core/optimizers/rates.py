"""Rates that may be schedules, and arithmetic that rules share."""

import math

import tensorflow as tf

from core.optimizers.transform import Rate, Schedule


def rate_at(rate: float | Schedule, step: tf.Tensor) -> float | tf.Tensor:
    """Returns this update's rate: a Python number if it is constant, so that it folds into the rule's constants."""
    return rate(step) if callable(rate) else rate


def times(factor: Rate | None, rate: Rate) -> Rate:
    """Returns their product. Without a factor it adds no operation: a factor of 1.0 would reorder the graph."""
    return rate if factor is None else factor * rate


def updates_after(step: tf.Tensor) -> tf.Tensor:
    """Returns the papers' t: one for the first update, as a float."""
    return tf.cast(step + 1, tf.float32)


def weight_seen(beta: float, t: tf.Tensor) -> tf.Tensor:
    """Returns 1 - β^t: the total weight of t values in a moving average from zero, the divisor of its correction."""
    # As a float32 difference it would be off by 7e-4 of itself for β = 0.99999, whose rounding is 1e-3 of 1 - β.
    return -tf.math.expm1(t * math.log(beta)) if beta else tf.ones([])


def newest_share(t: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns the share of the newest of t values in a debiased moving average."""
    return (1.0 - beta) / weight_seen(beta, t)


def as_dtype(scalar: float | tf.Tensor, tensor: tf.Tensor) -> float | tf.Tensor:
    """Returns `scalar` in the dtype of `tensor`; without an operation if it already has it."""
    return tf.cast(scalar, tensor.dtype) if isinstance(scalar, tf.Tensor) else scalar
