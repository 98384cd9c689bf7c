"""Sources that change the training order of another source; examples keep their indices.

Evaluation still reads each example once. Only the training order changes. So a run resumes as exactly as with the
original source, on any number of replicas.

`balanced` draws classes equally often, however many examples each has:

    Experiment.train_source = @balanced()
    balanced.source = @csv()
    balanced.by = 'label'

With C classes, each block of C positions has one example of each class, in random order. A class goes through all of
its examples before one repeats, so examples of a small class repeat more often. Class counts in a batch differ by one
example at most.

>>> from core.data.arrays import ArraySource
>>> source = balanced(ArraySource({"label": np.array([0, 0, 0, 0, 0, 0, 0, 1])}, name="rare"), by="label")
>>> order = source.order(tf.range(16, dtype=tf.int64), rng=Rng.from_seed(0), span=16)
>>> np.bincount(source.gather(order)["label"]).tolist(), len(source)
([8, 8], 8)

`weighted` draws examples in proportion to their weights:

    Experiment.train_source = @weighted()
    weighted.source = @npz()
    weighted.weights = 'importance'     # a feature; in Python also an array, one number per example

An epoch of n examples has n positions. An example of weight w appears n w / (sum of weights) times in it, rounded up or
down. This is systematic sampling: n equal steps through the cumulative weights. Each epoch shifts the steps by the
golden ratio, so that even small weights get their exact share over many epochs. Within an epoch, the order is shuffled.

>>> source = weighted(ArraySource({"x": np.arange(4)}, name="four"), weights=[2.0, 1.0, 1.0, 0.0])
>>> order = source.order(tf.range(400, dtype=tf.int64), rng=Rng.from_seed(0), span=400)
>>> np.bincount(order, minlength=4).tolist()
[200, 100, 100, 0]
"""

from collections.abc import Sequence

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.shuffle import shuffled
from core.data.source import Kept, Source, check_feature, check_source
from core.errors import DataError
from core.random import Rng

_ROUNDS = 40  # each halves the deviation from even odds, to less than an epoch of a million can show
_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo one are spread most evenly


class Reordered(Source):
    """The examples of `source` in another training order. Subclasses define the order in `order`."""

    def __init__(self, source: Source, *, name: str) -> None:
        check_source(f"{name}.source", source)
        super().__init__(name, size=len(source), place=f"`{source.name}`, {source.place}")
        self.source, self.tokenizer, self.threads = source, source.tokenizer, source.threads

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return self.source.spec

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.source.gather(indices)

    @property
    def kept(self) -> Kept | None:
        return self.source.kept if type(self).gather is Reordered.gather else None

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        return self.source.values(feature)

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        return self.source.extremes(feature)

    def value_range(self, feature: str) -> tuple[float, float] | None:
        return self.source.value_range(feature)

    def _one_each(self, feature: str) -> npt.NDArray[np.generic]:
        """Returns the values of a feature with one number per example; raises a `DataError` for other features."""
        check_feature(self.source, feature)
        values = self.source.values(feature)
        if values is None:
            raise DataError(
                f"`{self.name}` draws by `{feature}`, which the source `{self.source.name}` ({self.source.place}) "
                f"doesn't hold in memory: a source of your own returns it from `values({feature!r})`."
            )
        if values.ndim != 1:
            raise DataError(
                f"`{self.name}` draws by `{feature}`, which has shape {list(values.shape[1:])} in each example of the "
                f"source `{self.source.name}` ({self.source.place}); give a feature that is one number."
            )
        return values


class Balanced(Reordered):
    """Draws each value of the integer feature `by` equally often, in training."""

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
    """Makes a source that draws each class equally often in training. The feature `by` is the class."""
    return Balanced(source, by)


def permuted(places: tf.Tensor, *, size: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Returns the new positions of `places`, int64 [n], under n permutations of `size` [n] items, one for each key.

    "Swap or not" (Hoang, Morris & Rogaway, 2012) computes only the requested positions, for any number of items. In
    each round, a position gets a partner, and a random bit of the pair decides whether they swap.
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
    """Returns uint64 keys [n], hashed from the seed of `rng` and the arrays `numbers`, int64 [n]."""
    low, high = tf.unstack(tf.cast(rng.seed, tf.uint64))
    keys = low | tf.bitwise.left_shift(high, tf.constant(32, tf.uint64))
    for number in numbers:
        keys = _mixed(keys ^ _mixed(tf.cast(number, tf.uint64) + tf.constant(0x9E3779B97F4A7C15, tf.uint64)))
    return keys


def _mixed(x: tf.Tensor) -> tf.Tensor:
    """Hashes uint64 values: each bit of `x` affects all bits of a result (SplitMix64; Steele, Lea & Flood, 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))) * tf.constant(factor, tf.uint64)
    return x ^ tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))


class Weighted(Reordered):
    """Draws examples of `source` in proportion to `weights`: a feature's name, or one number per example."""

    def __init__(self, source: Source, weights: str | Sequence[float] | npt.NDArray[np.generic]) -> None:
        super().__init__(source, name="weighted")
        given = self._one_each(weights) if isinstance(weights, str) else np.asarray(weights)
        if given.shape != (len(source),) or given.dtype.kind not in "fiub":
            raise DataError(
                f"`weighted.weights` has shape {list(given.shape)} and dtype {given.dtype}, but the source "
                f"`{source.name}` ({source.place}) has {len(source):,} examples: give one number for each, or the name "
                "of a feature."
            )
        numbers = given.astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
        if bad.size:
            raise DataError(
                f"`weighted.weights` is {numbers[bad[0]]} for example {bad[0]} of the source `{source.name}` "
                f"({source.place}); weights are finite and at least 0: give it another, 0 to leave the example out."
            )
        if not numbers.any():
            raise DataError(
                f"`weighted.weights` is 0 for all {len(source):,} examples of the source `{source.name}` "
                f"({source.place}), so none is ever drawn; give some of them a number above 0."
            )
        numbers /= numbers.max()  # because their sum may overflow
        self._ends = np.cumsum(numbers / numbers.sum())
        self._last = int(np.flatnonzero(numbers)[-1])

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        size = len(self)
        teeth = tf.cast(shuffled(positions, size=size, rng=rng, span=span), tf.float64)
        moved = tf.math.floormod(tf.cast(positions // size, tf.float64) * _GOLDEN, 1.0)
        found = tf.searchsorted(self._ends, (teeth + moved) / size * self._ends[-1], side="right", out_type=tf.int64)
        return tf.minimum(found, self._last)  # if rounding exceeds the end


@gin.configurable
def weighted(source: Source, weights: str | Sequence[float] | npt.NDArray[np.generic]) -> Source:
    """Makes a source that draws examples in training in proportion to `weights`: a feature's name, or numbers."""
    return Weighted(source, weights)
