"""`Sharding`, the layout of a tensor on a mesh, and the interface of layout rules.

For each dimension, a layout has the mesh axis that shards it, or "-". A tensor may also be a partial sum along some
axes: the true value is the sum over these axes' devices. An addition can read a partial sum; all other operations need
it reduced first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf
from tensorflow.dtensor.python import gen_dtensor_ops

from core.parallel.mesh.layouts import WHOLE

Axes = tuple[str, ...]


class Sharding(NamedTuple):
    """A tensor's layout: a mesh axis per dimension (`axes`), and the axes of which it is a partial sum (`parts_of`)."""

    axes: Axes
    parts_of: frozenset[str] = frozenset()


class Reads(Protocol):
    """An operation's inputs. A layout rule reads them by index, and each method counts the collectives it causes."""

    def added_up(self, number: int) -> Axes:
        """Reduces an input if it is a partial sum. Returns its mesh axes by dimension."""

    def added_up_together(self, numbers: Sequence[int]) -> None:
        """Reduces inputs with equal layouts in one collective, because their sum is reduced."""

    def whole_along(self, number: int, dimension: int) -> None:
        """Gathers an input along `dimension`, which is then no longer sharded."""

    def rows_of_table(self, shape: Sequence[int]) -> str:
        """Returns the mesh axis that shards the rows of a lookup table of this shape."""

    def size_of(self, axis: str) -> int:
        """Returns the number of devices along the mesh axis `axis`."""


Rule = Callable[[tf.Operation, Reads, Sequence[Sharding]], list[Sharding]]


def laid_out(x: tf.Tensor, axes: Axes) -> tf.Tensor:
    """Gives `x` and its gradient the layout `axes` in a trace, with DTensor's `relayout` operation."""
    return gen_dtensor_ops.relayout(x, ",".join(axes))


def whole(x: tf.Tensor) -> Sharding:
    return Sharding((WHOLE,) * (x.shape.rank or 0))


def unknown(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Gathers all inputs of an operation without a rule. The results are whole."""
    for i in range(len(op.inputs)):
        for d, axis in enumerate(reads.added_up(i)):
            if axis != WHOLE:
                reads.whole_along(i, d)
    return [whole(y) for y in op.outputs]
