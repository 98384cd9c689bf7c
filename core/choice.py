"""One of two tensors, by one condition."""

import tensorflow as tf


def one_of(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns `x` where the scalar `condition` holds, or else `y`, of the same shape.

    >>> one_of(tf.constant(False), tf.constant([1, 2]), tf.constant([3, 4])).numpy()
    array([3, 4], dtype=int32)
    """
    # One condition for each number: a mesh dies of one for all.
    return tf.where(tf.broadcast_to(condition, x.shape), x, y)
