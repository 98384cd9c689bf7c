"""Sums of squares that give an exact variance even if the values are far from zero.

In float64, a sum of squares near 1e16 loses a deviation of 1 to rounding. So each product is a pair of float64 numbers,
106 bits in all. The pair is split into parts of 26 bits, at bit positions that are the same for all values. Parts of
one position add up without rounding, for more than 100 million values, in any order.
"""

from typing import NamedTuple

import tensorflow as tf

_MANY = 16_384  # values; with so many, splitting them into parts takes longer than everything else
_BITS, _LOWEST, _PLACES = 26, -18, 32  # bits of a part, lowest position, and number: squares of float32, with margin


class Moments(NamedTuple):
    """Weighted sums of values. Each sum is split into parts of 26 bits: [parts], the lowest bits first."""

    weight: tf.Tensor  # Σ weight
    total: tf.Tensor  # Σ weight · v
    squares: tf.Tensor  # Σ weight · v²


def moments(values: tf.Tensor, weights: tf.Tensor) -> Moments:
    """Returns the weighted sums of `values` (float64). `values` must be finite, even those of weight zero."""
    v, w = (_whole(tf.reshape(x, [-1])) for x in (values, weights))
    if (values.shape.num_elements() or 0) > _MANY:
        weight, total, squares = _about_mean(v.high, w.high)
    else:
        weight, total = w, _times(w, v)
        squares = _times(total, v)
    sums = _sums_by_place(tf.stack([weight.high, *total, *squares]))
    return Moments(sums[0], sums[1] + sums[2], sums[3] + sums[4])


def _about_mean(v: tf.Tensor, w: tf.Tensor) -> list["_Pair"]:
    """Returns Σ w, Σ w v and Σ w v², [1] each, for many values, from sums of deviations from the mean.

    This takes a thirtieth of the time that `_times` takes for each value. The variance is off by a few parts in 1e16.
    """
    weight = tf.reduce_sum(w, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(w * v, keepdims=True), weight)
    deviations = v - mean
    total, squares = (tf.reduce_sum(w * x, keepdims=True) for x in (deviations, tf.square(deviations)))
    at_mean = _times(_whole(mean), _whole(weight))
    # Σ w v² = Σ w d² + m · (2 Σ w d + m Σ w), for v = m + d
    moved = _times(_whole(mean), _plus(at_mean, _whole(2.0 * total)))
    return [_whole(weight), _plus(at_mean, _whole(total)), _plus(moved, _whole(squares))]


def _sums_by_place(x: tf.Tensor) -> tf.Tensor:
    """Splits the values of `x` [rows, n] into parts of 26 bits. Returns each row's sum of each part: [rows, parts]."""
    rows, units = x.shape[0], tf.constant([2.0 ** (_BITS * (i + _LOWEST)) for i in range(_PLACES)], tf.float64)
    sums = tf.zeros([rows * _PLACES], tf.float64)
    for _ in range(3):  # which hold 53 bits, wherever the first begins
        exponent = tf.cast(tf.bitwise.right_shift(tf.bitcast(tf.abs(x), tf.int64), tf.constant(52, tf.int64)), tf.int32)
        place = tf.clip_by_value(exponent - 1023 - _LOWEST * _BITS, 0, _PLACES * _BITS - 1) // _BITS
        unit = tf.gather(units, place)
        part = tf.where(tf.abs(x) < unit * 2.0**52, tf.round(x / unit) * unit, x)
        numbers = place + _PLACES * tf.range(rows)[:, None]
        sums += tf.math.unsorted_segment_sum(tf.reshape(part, [-1]), tf.reshape(numbers, [-1]), rows * _PLACES)
        x -= part
    below = tf.reduce_sum(x, 1, keepdims=True)  # the grid
    return tf.reshape(sums, [rows, _PLACES]) + tf.concat([below, tf.zeros([rows, _PLACES - 1], tf.float64)], 1)


def squared_deviations(seen: Moments) -> tf.Tensor:
    """Returns Σ w (v − mean)² from the sums in `seen`. A result as small as the rounding errors becomes zero."""
    high = tf.stack(seen)
    sums = _Pair(high, tf.zeros_like(high))
    for count in (16, 8, 4, 2, 1):
        sums = _plus(*(_Pair(*(x[:, part] for x in sums)) for part in (slice(count), slice(count, None))))
    weight, total, squares = (_Pair(sums.high[i, 0], sums.low[i, 0]) for i in range(3))
    left, right = _times(squares, weight), _times(total, total)
    spread = tf.math.divide_no_nan((left.high - right.high) + (left.low - right.low), weight.high)
    # Rounding leaves equal values about 1e-31 of their squares. Float32 neighbours have 1e-15; 1e8 ± 1 has 1e-16.
    return tf.where(spread <= 1e-29 * squares.high, tf.zeros_like(spread), spread)


class _Pair(NamedTuple):
    """A number as the sum `high + low`, where `low` is the rounding error of `high` (Dekker, 1971)."""

    high: tf.Tensor
    low: tf.Tensor


def _whole(x: tf.Tensor) -> _Pair:
    return _Pair(x, tf.zeros_like(x))


def _sum(a: tf.Tensor, b: tf.Tensor) -> _Pair:
    """Returns a + b exactly (Knuth, 1969)."""
    high = a + b
    of_b = high - a
    return _Pair(high, (a - (high - of_b)) + (b - of_b))


def _plus(a: _Pair, b: _Pair) -> _Pair:
    """Returns a + b to about 104 bits."""
    high, low = _sum(a.high, b.high)
    return _sum(high, low + (a.low + b.low))


def _times(a: _Pair, b: _Pair) -> _Pair:
    """Returns a · b to about 104 bits. The product of the high parts is exact (Dekker, 1971)."""
    high = a.high * b.high
    (a1, a2), (b1, b2) = _halves(a.high), _halves(b.high)
    # With differences only: Grappler reorders sums of several terms.
    rest = a2 * b2 - (((high - a1 * b1) - a1 * b2) - a2 * b1)
    return _sum(high, rest + (a.high * b.low + a.low * b.high))


def _halves(x: tf.Tensor) -> _Pair:
    """Splits `x` into two numbers of 26 bits each. Products of such numbers are exact."""
    scaled = x * (2.0**27 + 1.0)
    high = scaled - (scaled - x)
    return _Pair(high, x - high)
