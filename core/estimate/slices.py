"""The layout of a slice on a mesh: which dimension of the input each of its dimensions is, and the cost."""

from collections.abc import Sequence

import tensorflow as tf

from core.estimate.sharding import Reads, Sharding
from core.parallel.mesh.layouts import WHOLE


def sliced(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Slices some dimensions, drops others and adds some; dimensions of unchanged size stay sharded."""
    x, y, axes = op.inputs[0], op.outputs[0], reads.added_up(0)
    found: list[str] = []
    for d in _kept(op, x.shape.rank, op.inputs[1].shape[0]):
        if d is not None and axes[d] != WHOLE and x.shape[d] != y.shape[len(found)]:
            reads.whole_along(0, d)
            d = None
        found.append(WHOLE if d is None else axes[d])
    for d, axis in enumerate(axes):
        if axis != WHOLE and d not in _kept(op, x.shape.rank, op.inputs[1].shape[0]):
            reads.whole_along(0, d)
    return [Sharding(tuple(found))]


def _kept(op: tf.Operation, rank: int, count: int) -> list[int | None]:
    """Returns, for each dimension of a slice, its dimension in the input; `None` for a new one."""
    drops, adds, rest = (op.get_attr(f"{name}_mask") for name in ("shrink_axis", "new_axis", "ellipsis"))
    named = sum(not (adds | rest) >> i & 1 for i in range(count))
    found: list[int | None] = []
    d = 0
    for i in range(count):
        if rest >> i & 1:
            found += range(d, d + rank - named)
            d += rank - named
        elif adds >> i & 1:
            found.append(None)
        else:
            found += [] if drops >> i & 1 else [d]
            d += 1
    return [*found, *range(d, rank)]
