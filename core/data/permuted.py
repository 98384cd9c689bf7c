"""Permutations of many sizes at once, one for each element: where does each of many numbers go in its own?

"Swap or not" (Hoang, Morris & Rogaway, 2012): in each round a number meets a partner, and a coin that both see says
whether they change places. It permutes any number of things, and nothing but the numbers asked for is computed.
"""

import tensorflow as tf

from core.random import Rng

_ROUNDS = 40  # each halves what is left of the distance from even odds: beyond what an epoch of a million can show


def permuted(places: tf.Tensor, *, size: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Returns where `places` (int64 [n], below `size`) go in the permutations that `keys` (uint64 [n]) name."""
    sizes = tf.cast(size, tf.uint64)

    def swap_or_not(turn: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key = _mixed(keys + turn)
        partners = (key % sizes + sizes - places) % sizes
        coins = _mixed(key ^ tf.maximum(places, partners)) & tf.constant(1, tf.uint64)
        return turn + tf.constant(1, tf.uint64), tf.where(tf.cast(coins, tf.bool), partners, places)

    start = tf.constant(0, tf.uint64), tf.cast(places, tf.uint64)
    _, places = tf.while_loop(lambda turn, _: turn < tf.constant(_ROUNDS, tf.uint64), swap_or_not, start)
    return tf.cast(places, tf.int64)


def keys_of(rng: Rng, *numbers: tf.Tensor) -> tf.Tensor:
    """Returns keys (uint64 [n]) that `rng` and `numbers` (int64 [n]) decide."""
    low, high = tf.unstack(tf.cast(rng.seed, tf.uint64))
    keys = low | tf.bitwise.left_shift(high, tf.constant(32, tf.uint64))
    for number in numbers:
        keys = _mixed(keys ^ _mixed(tf.cast(number, tf.uint64) + tf.constant(0x9E3779B97F4A7C15, tf.uint64)))
    return keys


def _mixed(x: tf.Tensor) -> tf.Tensor:
    """Returns 64 bits of which each hangs on all of `x` (SplitMix64; Steele, Lea & Flood, 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))) * tf.constant(factor, tf.uint64)
    return x ^ tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))
