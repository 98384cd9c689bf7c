"""Stochastic rounding to bfloat16, and to 8-bit codes in blocks of 256 values with one float32 scale each.

Stochastic rounding picks one of the two nearest values at random, such that the mean is the exact value. Rounding to
the nearest would freeze a moving average: it moves by less than the distance between two values.

The codes follow Dettmers et al. (2022), "8-bit optimizers via block-wise quantization": a code has a variable number of
bits for its exponent, so large values of a block are precise and small ones aren't zero. The magnitudes of n bits are
(8^e (7 k / 2^e - 6) - 1) / (8^n - 1) for k = 1, ..., 2^n, where e = ⌊log₂ k⌋. (The paper's base is 10.)
"""

import math

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.random import Rng

BLOCK = 256  # values that share a scale
SIGNED, UNSIGNED = tf.int8, tf.uint8
_BITS = {SIGNED: 7, UNSIGNED: 8}  # of a magnitude


def noise_for(rng: Rng, shape: tf.TensorShape) -> tf.Tensor:
    """Draws a uniform uint16 for each value of `shape`."""
    size = math.prod(shape)
    pairs = tf.reshape(tf.bitcast(rng.bits([-(-size // 2)]), tf.uint16), [-1])
    return tf.reshape(pairs[:size] if size % 2 else pairs, shape)


def to_bfloat16(x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Rounds float32 to bfloat16 at random; finite values stay finite, infinite ones and NaN stay as they are."""
    # The lower 16 bits, over 2^16, are the probability of a carry into the upper 16. The largest ones get no carry.
    carries = tf.abs(x) < float(tf.bfloat16.max)
    bits = tf.bitcast(x, tf.uint32) + tf.where(carries, tf.cast(noise, tf.uint32), tf.constant(0, tf.uint32))
    return tf.bitcast(tf.cast(tf.bitwise.right_shift(bits, tf.constant(16, tf.uint32)), tf.uint16), tf.bfloat16)


def scales_shape(shape: tf.TensorShape) -> list[int]:
    """Returns the shape of the scales of a tensor of `shape`."""
    return [-(-math.prod(shape) // BLOCK)]


def to_codes(x: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns codes of `dtype` (int8, or uint8 if no value is negative) like `x`, and each block's largest magnitude.

    Only zero has the code 0 of uint8. If a value isn't finite, its block's scale isn't either.
    """
    blocks, bits = _in_blocks(x), _BITS[dtype]
    size = tf.abs(blocks)
    # A maximum of the bits: there NaN is the largest, while a maximum of floats may drop it under XLA.
    scales = tf.bitcast(tf.reduce_max(tf.bitcast(size, tf.int32), axis=1), tf.float32)
    z = tf.math.divide_no_nan(size, scales[:, tf.newaxis]) * (8.0**bits - 1.0) + 1.0
    exponent = tf.bitwise.right_shift(tf.bitcast(z, tf.int32), 23) - 127
    third = tf.bitwise.right_shift(exponent * 11, 5)  # e, for exponents up to 24
    power = tf.bitcast(tf.bitwise.left_shift(third + 127, 23), tf.float32)  # 2^e
    # Between two codes, values are linear in the position, also where e changes.
    position = (z / tf.square(power) + 6.0 * power) / 7.0 - 1.0
    share = (tf.cast(_in_blocks(noise), tf.float32) + 0.5) * 2.0**-16
    codes = tf.minimum(tf.cast(position + share, tf.int32), 2**bits - 1)
    if dtype == UNSIGNED:
        codes = tf.maximum(codes, tf.cast(size > 0.0, tf.int32))
    else:
        codes = tf.where(blocks < 0.0, -codes, codes)
    return _like(tf.cast(codes, dtype), x.shape), scales


def from_codes(codes: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """Returns the float32 values of `codes`."""
    index = tf.cast(_in_blocks(codes), tf.int32) + (0 if codes.dtype == UNSIGNED else 128)
    return _like(tf.gather(_values(codes.dtype), index) * scales[:, tf.newaxis], codes.shape)


def _values(dtype: tf.DType) -> npt.NDArray[np.float32]:
    """Returns the values of all codes, for a scale of one, from the smallest code on."""
    bits = _BITS[dtype]
    k = np.arange(1.0, 2.0**bits + 1.0)
    power = 2.0 ** np.floor(np.log2(k))
    sizes = (power**2 * (7.0 * k - 6.0 * power) - 1.0) / (8.0**bits - 1.0)
    return (sizes if dtype == UNSIGNED else np.concatenate([[-1.0], -sizes[:0:-1], sizes])).astype(np.float32)


def _in_blocks(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` as [blocks, 256]; the last block is padded with zeros."""
    size = math.prod(x.shape)
    flat = tf.reshape(x, [size])
    return tf.reshape(tf.pad(flat, [[0, -size % BLOCK]]) if size % BLOCK else flat, [-1, BLOCK])


def _like(blocks: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Reverses `_in_blocks`."""
    size = math.prod(shape)
    return tf.reshape(tf.reshape(blocks, [-1])[:size] if size % BLOCK else blocks, shape)
