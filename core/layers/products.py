"""Matrix products in the dtype of their inputs, rounded to nearest on every machine."""

import functools

import tensorflow as tf

from core.layers.shapes import widen
from core.tracing import only_cpus


def product(a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> tf.Tensor:
    """Returns the matrix product of `a` and `b` over their last two axes; `transpose_a` takes `a` transposed."""
    if a.dtype != tf.bfloat16 or _rounds():
        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return tf.cast(tf.matmul(widen(a), widen(b), transpose_a=transpose_a, transpose_b=transpose_b), a.dtype)


@functools.cache
def _rounds() -> bool:
    """Says whether TensorFlow's kernel rounds a bfloat16 product to nearest.

    Eigen's, which runs on CPUs where oneDNN's doesn't, truncates: up to two roundings, all towards zero, which sums
    don't average. It takes as long as a product in float32.
    """
    if not only_cpus():
        return True
    with tf.init_scope(), tf.device("CPU:0"):
        above = tf.constant([[1.0], [1.5 * 2.0**-8]], tf.bfloat16)  # their sum is three quarters of the way to the next
        return bool(tf.matmul(tf.ones([1, 2], tf.bfloat16), above)[0, 0] > 1.0)
