"""How an export keeps weights: as they are, or in fewer bits, of which its functions make floats again when called."""

import tensorflow as tf

# Below this a variable stays as it is: biases, scales and the like cost few bytes, and much where they lose digits.
LEAST_ELEMENTS = 1024
LARGEST = 127.0  # of an int8 that has its negative


class Weights(tf.Module):
    """Keeps one variable's value; `float32` means as it is."""

    def __init__(self, value: tf.Tensor, weights: str):
        super().__init__()
        self.dtype, self.scale = value.dtype, None
        if not value.dtype.is_floating or value.shape.rank < 2 or value.shape.num_elements() < LEAST_ELEMENTS:
            weights = "float32"
        if weights == "int8":
            value, scale = quantised(value)
            self.scale = tf.Variable(scale, trainable=False)
        elif weights == "bfloat16":
            value = tf.cast(value, tf.bfloat16)
        self.stored = tf.Variable(value, trainable=False)

    def read(self) -> tf.Tensor:
        """Returns the value in its own dtype."""
        value = self.stored.read_value()
        if value.dtype == self.dtype:
            return value
        value = tf.cast(value, self.dtype)
        return value if self.scale is None else value * self.scale


def quantised(w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns int8 and scales of which `w` is about the product: symmetric, a scale for each place of the last axis.

    That axis is a layer's outputs, which may differ much in size from each other.
    """
    largest = tf.reduce_max(tf.abs(w), axis=tuple(range(w.shape.rank - 1)))
    scale = tf.where(largest > 0, largest / LARGEST, tf.ones_like(largest))
    return tf.cast(tf.round(w / scale), tf.int8), scale
