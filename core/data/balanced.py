"""Classes that come equally often in training, however many examples each has.

    Experiment.train_source = @balanced()
    balanced.source = @csv()
    balanced.by = 'label'

With C classes, any C positions in a row that begin at a multiple of C hold one example of each class, in an order drawn
anew; a class goes through all of its examples, each once, before any comes again. So a small class is repeated more
often, and a batch's classes differ by one example at most.

>>> from core.data.arrays import ArraySource
>>> source = balanced(ArraySource({"label": np.array([0, 0, 0, 0, 0, 0, 0, 1])}, name="rare"), by="label")
>>> order = source.order(tf.range(16, dtype=tf.int64), rng=Rng.from_seed(0), span=16)
>>> np.bincount(source.gather(order)["label"]).tolist(), len(source)
([8, 8], 8)
"""

import gin
import numpy as np
import tensorflow as tf

from core.data.reordered import Reordered
from core.data.source import Source
from core.errors import DataError
from core.random import Rng


class Balanced(Reordered):
    """Draws the examples of `source` so that each value of the feature `by` comes equally often."""

    def __init__(self, source: Source, by: str) -> None:
        super().__init__(source, name="balanced")
        labels = self._one_each(by)
        if labels.dtype.kind == "f":
            raise DataError(
                f"`balanced.by` is `{by}`, whose values are {labels.dtype} and no classes; give a feature of integers."
            )
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        self._members = np.argsort(classes, kind="stable").astype(np.int64)  # class after class
        self._counts = counts.astype(np.int64)
        self._begins = np.cumsum(self._counts) - self._counts

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        classes = tf.fill(tf.shape(positions), tf.constant(len(self._counts), tf.int64))
        turns = positions // classes
        chosen = permuted(positions % classes, size=classes, keys=keys_of(rng.fold("classes"), turns))
        counts = tf.gather(self._counts, chosen)
        keys = keys_of(rng.fold("members"), chosen, turns // counts)
        places = permuted(turns % counts, size=counts, keys=keys)
        return tf.gather(self._members, tf.gather(self._begins, chosen) + places)


@gin.configurable
def balanced(source: Source, by: str) -> Source:
    """Makes of `source` one that shows each class of the feature `by` equally often."""
    return Balanced(source, by)


_ROUNDS = 40  # each halves what is left of the distance from even odds: beyond what an epoch of a million can show


def permuted(places: tf.Tensor, *, size: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Returns where `places` (int64 [n], below `size` [n]) go in the permutations that `keys` (uint64 [n]) name.

    "Swap or not" (Hoang, Morris & Rogaway, 2012): in each round a number meets a partner, and a coin that both see says
    whether they change places. It permutes any number of things, and computes only the numbers asked for.
    """
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
    """Returns 64 bits, each of which depends on all of `x` (SplitMix64; Steele, Lea & Flood, 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))) * tf.constant(factor, tf.uint64)
    return x ^ tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))
