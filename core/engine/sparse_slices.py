"""Operations on sparse gradients: `IndexedSlices`, which store only the rows of a variable that were touched."""

from typing import Any

import tensorflow as tf


def joined(slices: tuple[tf.Tensor, tf.Tensor], shape: tf.TensorShape) -> tf.IndexedSlices:
    """Joins the values and indices of all microbatches to one `IndexedSlices` for a variable of `shape`."""
    values, indices = slices[0], tf.reshape(slices[1], [-1])
    values = tf.reshape(values, [indices.shape[0], *shape[1:]])
    return tf.IndexedSlices(values, indices, tf.constant(shape.as_list(), tf.int64))


def scaled(gradient: Any, scale: tf.Tensor) -> Any:
    """Multiplies a gradient (`IndexedSlices` or a tensor) by `scale`."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return gradient * scale
