"""Long sequences of windows, read in parallel: each batch continues the batch before.

    Experiment.train_source = @continued()
    continued.source = @topics()
    continued.sequences = 16            # and `Trainer.global_batch_size = 16`

The windows of `source` are divided into `sequences` sequences of equal length; windows that remain are left out. Row i
of each batch is the next window of sequence i. The feature `sequence` has this number, and `place` the window's number
in its sequence. A task that carries a state from batch to batch begins with an empty one at `place` 0.

>>> from core.data.arrays import ArraySource
>>> source = continued(ArraySource({"window": np.arange(7)}, name="windows"), sequences=2)
>>> order = source.order(tf.range(8, dtype=tf.int64), rng=Rng.from_seed(0), span=8)
>>> {name: x.numpy().tolist() for name, x in source.gather(order).items()}
{'window': [0, 3, 1, 4, 2, 5, 0, 3], 'sequence': [0, 1, 0, 1, 0, 1, 0, 1], 'place': [0, 0, 1, 1, 2, 2, 0, 0]}
"""

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import check_size
from core.data.reordered import Reordered
from core.data.source import Source
from core.errors import DataError
from core.random import Rng

_ADDED = ("sequence", "place")


class Continued(Reordered):
    """The windows of `source` in `sequences` sequences of equal length, with the features `sequence` and `place`."""

    def __init__(self, source: Source, sequences: int) -> None:
        super().__init__(source, name="continued")
        check_size(sequences=sequences)
        taken = [name for name in _ADDED if name in source.spec]
        if taken:
            raise DataError(
                f"the source `{source.name}` has a feature `{taken[0]}`, which `continued` adds: rename it."
            )
        if len(source) < sequences:
            raise DataError(
                f"`continued.sequences` is {sequences}, but the source `{source.name}` ({source.place}) has "
                f"{len(source):,} windows: give fewer sequences, or more text."
            )
        self._sequences, self._length = sequences, len(source) // sequences
        self._size = sequences * self._length

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {**self.source.spec, **{name: tf.TensorSpec([], tf.int32) for name in _ADDED}}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        sequence, place = indices // self._length, indices % self._length
        added = (tf.cast(x, tf.int32) for x in (sequence, place))
        return {**self.source.gather(indices), **dict(zip(_ADDED, added, strict=True))}

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        turns = positions // self._sequences
        return positions % self._sequences * self._length + turns % self._length

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        if feature in _ADDED:
            numbers = np.arange(len(self))
            return numbers // self._length if feature == "sequence" else numbers % self._length
        values = self.source.values(feature)
        return None if values is None else values[: len(self)]

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        if feature == "sequence":
            return 0, self._sequences - 1, 0, len(self) - 1
        return self.source.extremes(feature) if feature in self.source.spec else None


@gin.configurable
def continued(source: Source, sequences: int) -> Source:
    """Makes a source of `sequences` long sequences of windows, of which each batch has the next windows."""
    return Continued(source, sequences)
