"""Sums of squares that a variance can be taken from: exact for float32 values under weights that are whole numbers.

In float64 the sum of squares of targets near 3e7 is known to a few parts in 1e16, which is what a deviation of 8 makes
of it. So each value is cut into a coarse and a fine half, of twelve bits each where it is a float32: their products are
whole multiples of one small unit, and so are the sums, which lose nothing then. Other weights round each product, and
other values their fine halves, so that sums of many lose some 1e-16 of the sum of squares, and seldom a few 1e-15.
"""

from typing import NamedTuple

import tensorflow as tf

from core.metrics.state import weighted_sum


class Moments(NamedTuple):
    """Sums over values v = c + f, each times its weight."""

    coarse: tf.Tensor  # Σ weight · c
    fine: tf.Tensor
    coarse_squares: tf.Tensor  # Σ weight · c²
    products: tf.Tensor  # Σ weight · c · f
    fine_squares: tf.Tensor


def moments(values: tf.Tensor, weights: tf.Tensor) -> Moments:
    """Returns the sums of float64 `values`."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(tf.cast(values, tf.float32), tf.int32), ~0xFFF)
    coarse = tf.cast(tf.bitcast(bits, tf.float32), tf.float64)
    fine = values - coarse
    terms = (coarse, fine, tf.square(coarse), coarse * fine, tf.square(fine))
    return Moments(*(weighted_sum(x, weights) for x in terms))


def squared_deviations(seen: Moments, weight: tf.Tensor) -> tf.Tensor:
    """Returns Σ weight · (v − mean)² = (weight · Σ weight · v² − (Σ weight · v)²) / weight, with twice the digits."""
    squares = _sum(seen.coarse_squares, 2.0 * seen.products)
    high, low = _sum(squares.high, seen.fine_squares)
    squares = _sum(high, low + squares.low)
    total = _sum(seen.coarse, seen.fine)
    left, right = _times(squares, _Pair(weight, tf.zeros_like(weight))), _times(total, total)
    return tf.math.divide_no_nan((left.high - right.high) + (left.low - right.low), weight)


class _Pair(NamedTuple):
    """A number as the sum of two, of which the second is what rounding takes from the first (Dekker, 1971)."""

    high: tf.Tensor
    low: tf.Tensor


def _sum(a: tf.Tensor, b: tf.Tensor) -> _Pair:
    """Returns a + b exactly (Knuth, 1969)."""
    high = a + b
    of_b = high - a
    return _Pair(high, (a - (high - of_b)) + (b - of_b))


def _times(a: _Pair, b: _Pair) -> _Pair:
    """Returns a · b, the product of the high parts exactly (Dekker, 1971)."""
    high = a.high * b.high
    (a1, a2), (b1, b2) = _halves(a.high), _halves(b.high)
    rest = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2
    return _Pair(high, rest + (a.high * b.low + a.low * b.high))


def _halves(x: tf.Tensor) -> _Pair:
    """Returns `x` as two numbers of 26 bits, whose products are exact."""
    scaled = x * (2.0**27 + 1.0)
    high = scaled - (scaled - x)
    return _Pair(high, x - high)
