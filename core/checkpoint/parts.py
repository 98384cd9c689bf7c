"""Variables sharded over many devices, written, hashed and read in parts: no host needs to hold a whole one.

The devices may belong to several processes: each writes and reads its own shards.

A box defines a part: for each dimension, the first index and the one after the last.

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
    """Anything with a shape and a dtype, such as variables and their copies."""

    shape: tf.TensorShape
    dtype: tf.DType


@runtime_checkable
class InParts(Typed, Protocol):
    """A variable that returns and takes its value in parts."""

    def is_here(self) -> bool:
        """Says whether this process holds all of it."""

    def writers(self) -> set[int]:
        """Returns the numbers of the processes that have slices of it to write."""

    def slices(self) -> dict[Box, tf.Tensor]:
        """Returns the slices of this process."""

    def parts(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the value in row-major order, in parts of at most `most_bytes`, if this process holds all of it."""

    def assign_parts(self, read: Callable[[Box], tf.Tensor]) -> None:
        """Assigns the value that `read` returns box by box, each to its shard."""

    def agrees(self, read: Callable[[Box], tf.Tensor]) -> bool:
        """Says whether this process's shards equal, bit for bit, the values that `read` returns."""


def in_order(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Yields boxes of at most `most` values, which cover the whole in row-major order."""
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
    """Returns the name of a variable's part in TensorFlow's files; the whole has an empty name."""
    if all(bounds == (0, size) for bounds, size in zip(box, shape, strict=True)):
        return ""
    parts = ":".join(f"{first},{last - first}" for first, last in box)
    return f"{' '.join(map(str, shape))} {parts}"


def whole_of(shape: Sequence[int]) -> Box:
    """Returns the box that covers all of a variable of this shape."""
    return tuple((0, size) for size in shape)


def key_of(path: str) -> str:
    """Returns TensorFlow's key of a variable in a file."""
    return f"variables/{path.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def is_here(variable: tf.Variable) -> bool:
    """Says whether this process holds all of a variable."""
    return not isinstance(variable, InParts) or variable.is_here()


def merge(prefixes: Sequence[str], into: str) -> None:
    """Merges several files into one by their indices: no byte of a value is read."""
    with tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=into, delete_old_dirs=False)


def read_part(prefix: str, path: str, variable: Typed, box: Box) -> tf.Tensor:
    """Reads a part of a variable on the host; a variable saved whole is read whole into the host's memory."""
    with tf.device("CPU:0"):
        (value,) = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[key_of(path)],
            shape_and_slices=[shape_and_slice(variable.shape, box)],
            dtypes=[variable.dtype],
        )
    return value
