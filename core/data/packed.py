"""Packs several sequences of different lengths into one row, to reduce padding.

    Experiment.train_source = @packed()
    packed.source = @tfrecord()     # 'tokens': ('int', 512, 0), padded, and 'length': ('length', 'tokens')
    packed.width = 512

All batches must have one shape, because each shape needs a separate trace. The longest sequences are placed first, each
in the row where it leaves the least space (best fit). `document` has, for each position, the number of its sequence in
the row, from 0; -1 is padding. Tasks such as `LanguageModel` prevent attention between documents. `weight` is 1 at
positions of sequences and 0 at padding.

>>> from core.data.arrays import ArraySource
>>> words = np.array([[1, 2, 3, 4], [5, 0, 0, 0], [6, 7, 0, 0], [8, 9, 0, 0]])
>>> source = packed(ArraySource({"words": words, "length": np.array([4, 1, 2, 2])}, name="four"), width=5)
>>> rows = source.gather(tf.range(len(source), dtype=tf.int64))
>>> rows["words"].numpy().tolist(), rows["document"].numpy().tolist()
([[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]], [[0, 0, 0, 0, -1], [0, 1, 1, 2, 2]])
>>> round(source.padding, 3)  # of the 20 positions in four rows of five, 11 would be padding
0.1
"""

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import check_size
from core.data.source import Source, check_feature, check_source
from core.errors import DataError

_Numbers = npt.NDArray[np.int64]


class Packed(Source):
    """Packs the sequences of `source` into rows of `width` positions; `length` names the feature of their lengths.

    A feature with one value per position is concatenated along the row. A feature with one number per sequence repeats
    at all positions of that sequence.
    """

    def __init__(self, source: Source, width: int, length: str = "length") -> None:
        check_size(width=width)
        check_source("packed.source", source)
        check_feature(source, length)
        self.source, self.tokenizer, self._width = source, source.tokenizer, width
        self._parts = {name: spec for name, spec in source.spec.items() if name != length}
        self._longest = self._check_parts(source, length)
        self._lengths = self._check_lengths(source, length)
        rows = _rows_of(self._lengths, width)
        self._members = np.argsort(rows, kind="stable")
        self._begins = np.searchsorted(rows[self._members], np.arange(rows.max() + 2))
        super().__init__("packed", size=len(self._begins) - 1, place=f"`{source.name}`, {source.place}")

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        parts = {name: tf.TensorSpec([self._width, *x.shape[1:]], x.dtype) for name, x in self._parts.items()}
        place = {"document": tf.TensorSpec([self._width], tf.int32), "weight": tf.TensorSpec([self._width], tf.float32)}
        return parts | place

    @property
    def padding(self) -> float:
        return 1.0 - int(self._lengths.sum()) / (len(self) * self._width)

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        members, places, slots, document = tf.numpy_function(
            self._laid_out, [indices], [tf.int64, tf.int64, tf.int64, tf.int32], stateful=False
        )
        rows = [None, self._width]
        document, counts = tf.ensure_shape(document, rows), tf.ensure_shape(document >= 0, rows)
        examples = self.source.gather(tf.ensure_shape(members, [None]))

        def laid_out(spec: tf.TensorSpec, values: tf.Tensor) -> tf.Tensor:
            if spec.shape.rank:
                values, where = tf.reshape(values, [-1, *spec.shape[1:]]), places
            else:
                where = slots
            # One element more at the end, so that padding has something to gather.
            found = tf.gather(tf.concat([values, tf.zeros([1, *spec.shape[1:]], spec.dtype)], 0), where)
            return tf.ensure_shape(found, [*rows, *spec.shape[1:]])

        made = {name: laid_out(spec, examples[name]) for name, spec in self._parts.items()}
        return {**made, "document": document, "weight": tf.cast(counts, tf.float32)}

    def value_range(self, feature: str) -> tuple[float, float] | None:
        return self.source.value_range(feature) if feature in self._parts else None

    def _laid_out(self, rows: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers, npt.NDArray[np.int32]]:
        """Returns the examples in `rows`, and for each position its element, example and document, as indices."""
        begins, counts = self._begins[rows], self._begins[rows + 1] - self._begins[rows]
        ends = np.cumsum(counts)
        slot = np.arange(counts.sum())
        number = slot - np.repeat(ends - counts, counts)  # of the example in its row
        members = self._members[np.repeat(begins, counts) + number]
        lengths = self._lengths[members]
        before = np.cumsum(lengths) - lengths
        row = np.repeat(np.arange(len(rows)), counts)
        first = np.repeat(before[(ends - counts)[counts > 0]], counts[counts > 0])
        element = np.arange(lengths.sum()) - np.repeat(before, lengths)
        place = np.repeat(row * self._width + before - first, lengths) + element
        shape, of = (len(rows), self._width), np.repeat(slot, lengths)
        places, slots = np.full(shape, len(slot) * self._longest), np.full(shape, len(slot))
        document = np.full(shape, -1, np.int32)
        places.flat[place], slots.flat[place] = of * self._longest + element, of
        document.flat[place] = number[of]
        return members, places, slots, document

    def _check_parts(self, source: Source, length: str) -> int:
        """Returns the length to which the source pads sequences. Features of different lengths raise a `DataError`."""
        sizes = {name: spec.shape[0] for name, spec in self._parts.items() if spec.shape.rank}
        taken = [name for name in ("document", "weight") if name in self._parts]
        if not sizes or len(set(sizes.values())) > 1 or taken:
            found = ", ".join(f"`{name}` {spec.shape.as_list()}" for name, spec in self._parts.items())
            what = (
                f"`{taken[0]}` is a feature that `packed` adds" if taken else "sequences are padded to one first axis"
            )
            raise DataError(
                f"`packed` can't pack the examples of the source `{source.name}` ({source.place}), which besides "
                f"`{length}` have {found or 'nothing'}: {what}."
            )
        return next(iter(sizes.values()))

    def _check_lengths(self, source: Source, length: str) -> _Numbers:
        """Returns the length of each sequence, int64 [examples]. One that doesn't fit a row raises a `DataError`."""
        values = source.values(length)
        if values is None or values.ndim != 1 or values.dtype.kind not in "iu":
            raise DataError(
                f"`packed.length` is `{length}`, but the source `{source.name}` ({source.place}) doesn't hold one "
                "such integer per example in memory; give the feature with the sequences' lengths."
            )
        lengths, most = values.astype(np.int64), min(self._width, self._longest)
        wrong = np.flatnonzero((lengths < 1) | (lengths > most))
        if wrong.size:
            raise DataError(
                f"`{length}` of example {wrong[0]} of the source `{source.name}` ({source.place}) is "
                f"{lengths[wrong[0]]}, but a sequence has 1 to {most} places (`packed.width` is {self._width}): cut "
                "such examples, leave them out, or give a larger `width`."
            )
        return lengths


@gin.configurable
def packed(source: Source, width: int, *, length: str = "length") -> Packed:
    """Packs the sequences of `source` into rows of `width` positions. The feature `length` has their lengths."""
    return Packed(source, width, length)


def _rows_of(lengths: _Numbers, width: int) -> _Numbers:
    rows, count = np.empty(len(lengths), np.int64), 0
    with_room: list[list[int]] = [[] for _ in range(width + 1)]  # rows by their free space
    rooms = 0  # a bit for each amount of free space of some row: the lowest sufficient bit is the best fit
    for example in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[example])
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            row, room, count = count, width, count + 1
        rows[example] = row
        if room > length:
            with_room[room - length].append(row)
            rooms |= 1 << room - length
    return rows
