"""The layout of a tensor on a mesh, and the interface of layout rules.

A tensor has a mesh axis for each dimension, or "-" if that isn't sharded. It may also be a partial sum along axes,
which must be reduced over their devices before any operation except an addition reads it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf
from tensorflow.dtensor.python import gen_dtensor_ops

from core.parallel.mesh.layouts import WHOLE

Axes = tuple[str, ...]


class Sharding(NamedTuple):
    """The layout of a tensor."""

    axes: Axes
    parts_of: frozenset[str] = frozenset()


class Reads(Protocol):
    """The inputs that a rule reads, by index; both methods may cost a collective."""

    def added_up(self, number: int) -> Axes:
        """Returns the axes of an input after reducing partial sums."""

    def added_up_together(self, numbers: Sequence[int]) -> None:
        """Reduces inputs that are partial sums along the same axes together, as their sum, in one collective."""

    def whole_along(self, number: int, dimension: int) -> None:
        """Gathers an input along a dimension."""

    def rows_of_table(self, shape: Sequence[int]) -> str:
        """Returns the axis that shards the rows of a lookup table, a variable of this shape."""

    def size_of(self, axis: str) -> int:
        """Returns the number of devices along an axis."""


Rule = Callable[[tf.Operation, Reads, Sequence[Sharding]], list[Sharding]]


def laid_out(x: tf.Tensor, axes: Axes) -> tf.Tensor:
    """Gives `x` a layout in a trace, with DTensor's operation for it; its gradient has one too."""
    return gen_dtensor_ops.relayout(x, ",".join(axes))


def whole(x: tf.Tensor) -> Sharding:
    return Sharding((WHOLE,) * (x.shape.rank or 0))
