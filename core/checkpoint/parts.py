"""A variable that lies cut on many devices is written, hashed and read part by part: no host need hold the whole.

The devices may be those of several processes: each writes and reads what its own hold.

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


class Typed(Protocol):
    """What has a shape and a type, as variables and their copies have."""

    shape: tf.TensorShape
    dtype: tf.DType


@runtime_checkable
class InParts(Typed, Protocol):
    """A variable that gives and takes its value part by part."""

    def is_here(self) -> bool:
        """Says whether this process holds all of it."""

    def writers(self) -> set[int]:
        """Returns the numbers of the processes that have slices of it to write."""

    def slices(self) -> dict[Box, tf.Tensor]:
        """Returns those of this process."""

    def parts(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the value in row-major order, in parts of at most so many bytes, where this process holds all."""

    def assign_parts(self, read: Callable[[Box], tf.Tensor]) -> None:
        """Takes the value that `read` returns box by box, each where it belongs."""

    def agrees(self, read: Callable[[Box], tf.Tensor]) -> bool:
        """Says whether what this process holds is, to the bit, what `read` returns box by box."""


def in_order(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Yields boxes of at most `most` values, which make up the whole one after the other in row-major order."""
    if math.prod(shape) <= most:
        yield whole_of(shape)
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


def whole_of(shape: Sequence[int]) -> Box:
    """Returns the box that is all of a variable of this shape."""
    return tuple((0, size) for size in shape)


def key_of(path: str) -> str:
    """Returns TensorFlow's key of a variable in a file."""
    return f"variables/{path.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def is_here(variable: tf.Variable) -> bool:
    """Says whether this process holds all of a variable."""
    return not isinstance(variable, InParts) or variable.is_here()


def merge(prefixes: Sequence[str], into: str) -> None:
    """Makes one file of several, by names: no byte of a value is read."""
    with tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=into, delete_old_dirs=False)


def read_part(prefix: str, path: str, variable: Typed, box: Box) -> tf.Tensor:
    """Reads a part of a variable, on the host; what was saved whole passes through the host's memory as a whole."""
    with tf.device("CPU:0"):
        (value,) = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[key_of(path)],
            shape_and_slices=[shape_and_slice(variable.shape, box)],
            dtypes=[variable.dtype],
        )
    return value
