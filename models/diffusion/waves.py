"""The embedding of a time in sines and cosines."""

import math

import tensorflow as tf

TIMES = 1000.0  # DDPM's times, for which the wavelengths are made, are up to 1000; those of formulations about 1


def waves(t: tf.Tensor, size: int) -> tf.Tensor:
    """Returns sines and cosines of `t` [rows] with geometric wavelengths (Vaswani et al., 2017): [rows, size]."""
    rates = tf.exp(-math.log(10_000.0) * tf.range(size // 2, dtype=tf.float32) / (size // 2))
    angles = tf.cast(t, tf.float32)[:, tf.newaxis] * rates
    return tf.concat([tf.sin(angles), tf.cos(angles)], -1)
