"""How a tensor lies on a mesh, and what a rule for an operation is.

A tensor has an axis of the mesh for each dimension, "-" where it isn't cut; and it may be a part of a sum along axes,
which is to be added up over the devices of each before anything but an addition reads it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf
from tensorflow.dtensor.python import gen_dtensor_ops

from core.parallel.mesh.layouts import WHOLE

Axes = tuple[str, ...]


class Sharding(NamedTuple):
    """How a tensor lies."""

    axes: Axes
    parts_of: frozenset[str] = frozenset()


class Reads(Protocol):
    """What a rule asks for of the inputs of its operation, by number; both may take a collective."""

    def added_up(self, number: int) -> Axes:
        """Returns the axes of an input that is no part of a sum any more."""

    def added_up_together(self, numbers: Sequence[int]) -> None:
        """Adds inputs up in one collective for all that are alike, as their sum."""

    def whole_along(self, number: int, dimension: int) -> None:
        """Has an input that isn't cut along a dimension."""

    def rows_of_table(self, shape: Sequence[int]) -> str:
        """Returns the axis that cuts the rows of what is looked up in, a variable of this shape."""

    def size_of(self, axis: str) -> int:
        """Returns the number of devices along an axis."""


Rule = Callable[[tf.Operation, Reads, Sequence[Sharding]], list[Sharding]]


def laid_out(x: tf.Tensor, axes: Axes) -> tf.Tensor:
    """Says in a trace that `x` is to lie so, by the operation that DTensor has for it; its gradient is one too."""
    return gen_dtensor_ops.relayout(x, ",".join(axes))


def whole(x: tf.Tensor) -> Sharding:
    return Sharding((WHOLE,) * (x.shape.rank or 0))
