"""A variable that lies cut on many devices is hashed and read part by part: no host need hold the whole.

A box says which part: of each dimension the first index, and the one behind the last.

>>> list(in_order((4, 6), most=12))
[((0, 2), (0, 6)), ((2, 4), (0, 6))]
>>> shape_and_slice((4, 6), ((2, 4), (0, 6)))
'4 6 2,2:0,6'
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt
import tensorflow as tf

MOST_BYTES = 1 << 28  # of a part that is fetched from devices

Box = tuple[tuple[int, int], ...]


@runtime_checkable
class InParts(Protocol):
    """A variable that gives and takes its value part by part."""

    shape: tf.TensorShape
    dtype: tf.DType

    def parts(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the value in row-major order, in parts of at most so many bytes."""

    def assign_parts(self, read: Callable[[Box], tf.Tensor]) -> None:
        """Takes the value that `read` returns box by box, each where it belongs."""


def in_order(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Yields boxes of at most `most` values, which make up the whole one after the other in row-major order."""
    if math.prod(shape) <= most:
        yield tuple((0, size) for size in shape)
        return
    inner = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axis = next(axis for axis, size in enumerate(inner) if size <= most)
    rows = most // inner[axis]
    for outer in itertools.product(*map(range, shape[:axis])):
        for first in range(0, shape[axis], rows):
            last = min(first + rows, shape[axis])
            yield (*((i, i + 1) for i in outer), (first, last), *((0, size) for size in shape[axis + 1 :]))


def shape_and_slice(shape: Sequence[int], box: Box) -> str:
    """Returns what TensorFlow's files call a part of a variable by; the whole has no name."""
    if all(bounds == (0, size) for bounds, size in zip(box, shape, strict=True)):
        return ""
    parts = ":".join(f"{first},{last - first}" for first, last in box)
    return f"{' '.join(map(str, shape))} {parts}"
