"""Mixes several sources in given proportions.

    Experiment.train_source = @mixture()
    mixture.sources = [@clean/npz(), @noisy/npz()]
    mixture.weights = [3, 1]

With weights 3 and 1, each block of 4 examples has 3 from the first source, spread evenly. So the proportions in any
batch are exact to within one example. Each source goes through its own epochs in its own order, which may be that of
`balanced` or another mixture. So a small source repeats while a large one is still in its first epoch. The position in
the mixture alone determines the position in each source.

>>> from core.data.arrays import ArraySource
>>> three, eight = (ArraySource({"x": np.arange(size)}, name="x") for size in (3, 8))
>>> source = mixture([three, eight], [1, 3])
>>> source.quotas, len(source)
([1, 3], 11)
>>> order = source.order(tf.range(12, dtype=tf.int64), rng=Rng.from_seed(0), span=12)
>>> np.bincount(order < 3).tolist()  # of 12 examples 3 are from the first source
[9, 3]
"""

import math
from collections.abc import Callable, Sequence

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import is_number, listed
from core.data.source import Source, check_source
from core.errors import ConfigurationError, DataError, shown
from core.random import Rng

LONGEST_BLOCK = 10_000
_TOLERANCE = 1e-6  # of an example in a block


class Mixture(Source):
    """The examples of `sources`, one source after another. In training, each block has `quotas[i]` from source i."""

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        if not isinstance(sources, list | tuple):
            raise ConfigurationError(f"`mixture.sources` is {shown(sources)}; give a list of sources.")
        if not sources:
            raise ConfigurationError("`mixture.sources` is empty; give at least one source.")
        for number, source in enumerate(sources):
            check_source(f"mixture.sources[{number}]", source)
        _check_alike(sources)
        place = listed((f"`{source.name}`, {source.place}" for source in sources), most=3, quote="")
        super().__init__("mixture", size=sum(map(len, sources)), place=place)
        self.sources, self.tokenizer = list(sources), sources[0].tokenizer
        self.threads = max(source.threads for source in sources)
        self.quotas = quotas_of(weights, len(sources))
        self._firsts = np.cumsum([0, *map(len, sources)])[:-1].astype(np.int64)
        # Each source's examples are at the middles of equal parts of the block; the block is all of them, sorted.
        places = np.concatenate([(np.arange(quota) + 0.5) / quota for quota in self.quotas])
        numbers = np.repeat(np.arange(len(sources), dtype=np.int32), self.quotas)
        self._pattern = numbers[np.argsort(places, kind="stable")]
        self._turns = np.zeros(len(self._pattern), np.int64)  # earlier examples of the same source in the block
        for number, quota in enumerate(self.quotas):
            self._turns[self._pattern == number] = np.arange(quota)

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return self.sources[0].spec

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        which = tf.searchsorted(self._firsts, indices, side="right", out_type=tf.int32) - 1
        return self._from_each(which, indices, lambda i, mine: self.sources[i].gather(mine - self._firsts[i]))

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        block = len(self._pattern)
        which = tf.gather(self._pattern, positions % block)
        turns = positions // block * tf.gather(tf.constant(self.quotas, tf.int64), which) + tf.gather(
            self._turns, positions % block
        )

        def in_turn(number: int, mine: tf.Tensor) -> dict[str, tf.Tensor]:
            most = (span // block + 2) * self.quotas[number]
            indices = self.sources[number].order(mine, rng=rng.fold(number), span=most)
            return {"index": indices + self._firsts[number]}

        return self._from_each(which, turns, in_turn)["index"]

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        parts = [source.values(feature) for source in self.sources]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        found = [source.extremes(feature) for source in self.sources]
        known = [(*each, int(first)) for each, first in zip(found, self._firsts, strict=True) if each is not None]
        if len(known) < len(found):
            return None
        low, low_index, _, _, low_first = min(known, key=lambda each: each[0])
        _, _, high, high_index, high_first = max(known, key=lambda each: each[2])
        return low, low_index + low_first, high, high_index + high_first

    def value_range(self, feature: str) -> tuple[float, float] | None:
        ranges = [source.value_range(feature) for source in self.sources]
        known = [each for each in ranges if each is not None]
        if len(known) < len(ranges):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def _from_each(
        self, which: tf.Tensor, numbers: tf.Tensor, of: Callable[[int, tf.Tensor], dict[str, tf.Tensor]]
    ) -> dict[str, tf.Tensor]:
        """Calls `of(i, numbers of source i)` for each source. Joins the results in the order of `numbers`."""
        count = len(self.sources)
        places = tf.dynamic_partition(tf.range(tf.size(which)), which, count)
        made = [of(i, mine) for i, mine in enumerate(tf.dynamic_partition(numbers, which, count))]
        return {key: tf.dynamic_stitch(places, [each[key] for each in made]) for key in made[0]}


@gin.configurable
def mixture(sources: Sequence[Source], weights: Sequence[float]) -> Mixture:
    """Mixes sources in proportion to `weights`. All sources must have the same features."""
    return Mixture(sources, weights)


def quotas_of(weights: Sequence[float], count: int) -> list[int]:
    """Returns the number of examples of each source in a block. A block has at most 10,000 examples.

    >>> quotas_of([0.7, 0.3], 2), quotas_of([1, 1, 1], 3), quotas_of([2**0.5, 1], 2)
    ([7, 3], [1, 1, 1], [5858, 4142])
    """
    given = weights if isinstance(weights, list | tuple | np.ndarray) else ()
    if len(given) != count or not all(is_number(x) and math.isfinite(x) and x > 0 for x in given):
        raise ConfigurationError(
            f"`mixture.weights` is {shown(weights)}; give a number above 0 for each of the {count} sources."
        )
    numbers = np.asarray(given, np.float64)
    shares = numbers / numbers.max()  # so that a float can hold their sum
    shares /= shares.sum()
    blocks = np.arange(1, LONGEST_BLOCK + 1)
    off = np.zeros(len(blocks))
    for share in shares:
        off = np.maximum(off, np.abs(share * blocks - np.round(share * blocks)))
    exact = np.flatnonzero((off < _TOLERANCE) & (blocks * shares.min() > 0.5))
    block = int(blocks[exact[0]]) if exact.size else LONGEST_BLOCK
    quotas = np.floor(shares * block + _TOLERANCE).astype(int)
    short = np.argsort(quotas - shares * block, kind="stable")[: block - quotas.sum()]  # those rounded down most
    quotas[short] += 1
    if quotas.min() < 1:
        raise ConfigurationError(
            f"`mixture.weights` is {shown(weights)}: a share of {shares.min():.2g} is less than one example of "
            f"{LONGEST_BLOCK:,}; give it a larger weight, or leave the source out."
        )
    return quotas.tolist()


def _check_alike(sources: Sequence[Source]) -> None:
    """Raises a `DataError` if the sources' features or tokenizers differ."""
    first = sources[0]
    for source in sources[1:]:
        if source.spec != first.spec:
            raise DataError(
                f"`mixture.sources` differ: an example of `{first.name}` ({first.place}) is {_told(first)}, but one of "
                f"`{source.name}` ({source.place}) is {_told(source)}; give sources whose features, shapes and types "
                "are the same."
            )
        one, other = (each.tokenizer and each.tokenizer.identity for each in (first, source))
        if one != other:
            raise DataError(
                f"`mixture.sources` differ: the tokens of `{first.name}` ({first.place}) are of {shown(one)}, but "
                f"those of `{source.name}` ({source.place}) of {shown(other)}; give all one tokenizer."
            )


def _told(source: Source) -> str:
    return ", ".join(f"`{key}` {x.dtype.name} {x.shape.as_list()}" for key, x in source.spec.items())
