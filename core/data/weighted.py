"""Examples that come in training as often as their weights say.

    Experiment.train_source = @weighted()
    weighted.source = @npz()
    weighted.weights = 'importance'     # a feature; in Python also an array, one number an example

Of n examples an epoch has n positions. In each, an example of weight w comes n w / (sum of weights) times, rounded up
or down: a comb of n equal steps is laid over the weights, end to end (systematic sampling), and moved on by the golden
ratio from epoch to epoch, so that over many epochs the share is exact for small weights too. Within an epoch the order
is that of any source: shuffled.

>>> from core.data.arrays import ArraySource
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

from core.data.reordered import Reordered
from core.data.shuffle import shuffled
from core.data.source import Source
from core.errors import DataError
from core.random import Rng

_GOLDEN = (5**0.5 - 1) / 2  # the multiples of no other number lie more evenly between whole ones


class Weighted(Reordered):
    """Draws the examples of `source` in proportion to `weights`: a feature, or one number for each example."""

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
                f"({source.place}), so none is ever drawn; give a number above 0 to those that are to come."
            )
        numbers /= numbers.max()  # whose sum may be beyond what a float holds
        self._ends = np.cumsum(numbers / numbers.sum())
        self._last = int(np.flatnonzero(numbers)[-1])

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        size = len(self)
        teeth = tf.cast(shuffled(positions, size=size, rng=rng, span=span), tf.float64)
        moved = tf.math.floormod(tf.cast(positions // size, tf.float64) * _GOLDEN, 1.0)
        found = tf.searchsorted(self._ends, (teeth + moved) / size * self._ends[-1], side="right", out_type=tf.int64)
        return tf.minimum(found, self._last)  # where rounding leads beyond the end


@gin.configurable
def weighted(source: Source, weights: str | Sequence[float] | npt.NDArray[np.generic]) -> Source:
    """Makes of `source` one that shows an example as often as its weight says."""
    return Weighted(source, weights)
