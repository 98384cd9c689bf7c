"""Writes, hashes and reads sharded variables in parts, so that no host needs to hold a whole variable.

If the devices belong to several processes, each process writes and reads its own shards.

A `Box` is a part of an array: one pair `(first index, last index + 1)` for each dimension.

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
    """A variable that is read and assigned in parts, because it is sharded over a mesh, for example."""

    def is_here(self) -> bool:
        """Says whether this process holds every value of the variable."""

    def writers(self) -> set[int]:
        """Returns the indices of the processes that have slices of this variable to write."""

    def slices(self) -> dict[Box, tf.Tensor]:
        """Returns the slices of the variable that this process writes: `{box: tensor}`."""

    def parts(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the value in row-major order, in arrays of at most `most_bytes`. Call it only if `is_here()`."""

    def assign_parts(self, read: Callable[[Box], tf.Tensor]) -> None:
        """Calls `read(box)` for each box of the variable, and assigns the result to the shards that hold the box."""

    def agrees(self, read: Callable[[Box], tf.Tensor]) -> bool:
        """Says whether this process's shards equal `read(box)` bit for bit."""


def in_order(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Yields boxes of at most `most` values each, which cover an array of `shape` in row-major order."""
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
    """Returns TensorFlow's text for `box` of a variable, such as `"4 6 2,2:0,6"`. The whole variable gives ""."""
    if all(bounds == (0, size) for bounds, size in zip(box, shape, strict=True)):
        return ""
    parts = ":".join(f"{first},{last - first}" for first, last in box)
    return f"{' '.join(map(str, shape))} {parts}"


def whole_of(shape: Sequence[int]) -> Box:
    """Returns the box that covers a whole variable of this shape: `((0, 4), (0, 6))` for `[4, 6]`."""
    return tuple((0, size) for size in shape)


def key_of(path: str) -> str:
    """Returns the key under which a TensorFlow checkpoint stores the variable with this path."""
    return f"variables/{path.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def is_here(variable: tf.Variable) -> bool:
    """Says whether this process holds every value of `variable`."""
    return not isinstance(variable, InParts) or variable.is_here()


def merge(prefixes: Sequence[str], into: str) -> None:
    """Merges checkpoint files into one, `into`. It rewrites their indices, and doesn't read values."""
    with tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=into, delete_old_dirs=False)


def read_part(prefix: str, path: str, variable: Typed, box: Box) -> tf.Tensor:
    """Reads `box` of a saved variable into host memory. A variable saved unsharded is read whole."""
    with tf.device("CPU:0"):
        (value,) = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[key_of(path)],
            shape_and_slices=[shape_and_slice(variable.shape, box)],
            dtypes=[variable.dtype],
        )
    return value
