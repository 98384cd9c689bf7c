"""Choices between tensors by a condition, and NaN for invalid results."""

import tensorflow as tf


def one_of(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns `x` if the scalar `condition` is true, else `y`, of the same shape.

    >>> one_of(tf.constant(False), tf.constant([1, 2]), tf.constant([3, 4])).numpy()
    array([3, 4], dtype=int32)
    """
    # One condition per value: on a mesh, a single one for all crashes.
    return tf.where(tf.broadcast_to(condition, x.shape), x, y)


def zero_where(condition: tf.Tensor | None, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, with zero and no gradient where `condition` is true. None as condition changes nothing."""
    return value if condition is None else tf.where(condition, tf.zeros_like(value), value)


def nan(dtype: tf.DType) -> tf.Tensor:
    """Returns a scalar NaN. It marks invalid input on devices where operations can't raise errors."""
    return tf.constant(float("nan"), dtype)
