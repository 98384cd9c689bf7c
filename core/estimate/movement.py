"""Layout rules of operations that move values: reshape, transpose, gather (and its gradient), slice, concatenate."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.estimate.sharding import Reads, Sharding, unknown, whole
from core.parallel.mesh.layouts import WHOLE

_DATA = {"Split": 1, "StridedSliceGrad": 4}  # the input with the values, if it isn't the first


def reshaped(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Reshapes. A sharded dimension stays sharded if it is the first of its group, and is gathered otherwise."""
    x, y = op.inputs[0], op.outputs[0]
    if x.shape.num_elements() is None or y.shape.num_elements() is None or not y.shape.num_elements():
        return unknown(op, reads, shardings)
    found = [WHOLE] * y.shape.rank
    for before, after in _groups(list(x.shape), list(y.shape)):
        for d in before:
            axis = shardings[0].axes[d]
            if axis == WHOLE:
                continue
            first = next((e for e in after if y.shape[e] > 1), None)
            leading = all(x.shape[e] == 1 for e in before if e < d)
            if first is None or not leading or y.shape[first] % reads.size_of(axis):
                reads.whole_along(0, d)
            else:
                found[first] = axis
    return [Sharding(tuple(found), shardings[0].parts_of)]


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Pairs groups of dimensions before and after a reshape: both groups of a pair have equally many values."""
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        left, right = [i] if i < len(before) else [], [j] if j < len(after) else []
        i, j = i + len(left), j + len(right)
        while (a := math.prod(before[k] for k in left)) != (b := math.prod(after[k] for k in right)):
            if (a < b and i < len(before)) or j >= len(after):
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        groups.append((left, right))
    return groups


def transposed(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    order = _static(op.inputs[1])
    if order is None:
        return unknown(op, reads, shardings)
    return [Sharding(tuple(shardings[0].axes[int(d)] for d in order), shardings[0].parts_of)]


def _static(x: tf.Tensor) -> Any:
    """Returns a tensor's value if tracing knows it, else `None`."""
    if x.op.type == "InvertPermutation":
        order = tf.get_static_value(x.op.inputs[0])
        return None if order is None else order.argsort()
    return tf.get_static_value(x)


def expanded(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    axes, known = shardings[0].axes, tf.get_static_value(op.inputs[1])
    if known is None:
        return unknown(op, reads, shardings)
    place = int(known) % (len(axes) + 1)
    return [Sharding((*axes[:place], WHOLE, *axes[place:]), shardings[0].parts_of)]


def gathered(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Looks up rows of a table. With sharded rows, the result is a partial sum: a device has zeros for other rows."""
    known = tf.get_static_value(op.inputs[2]) if len(op.inputs) > 2 else 0
    if known is None or op.get_attr("batch_dims"):
        return unknown(op, reads, shardings)
    table, ids = reads.added_up(0), reads.added_up(1)
    axis = int(known) % len(table)
    result = [*table[:axis], *ids, *table[axis + 1 :]]
    for d, cut in enumerate(result):
        if cut != WHOLE and (result.count(cut) > 1 or cut == table[axis]):
            reads.whole_along(1, 0)
            result[d] = WHOLE
    return [Sharding(tuple(result), frozenset({table[axis]} - {WHOLE}))]


def segments(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Sums rows by index. If the rows are sharded, the result is a partial sum, except along a sharded table's axis."""
    values, ids = reads.added_up(0), reads.added_up(1)
    rest, own = values[len(ids) :], reads.rows_of_table(op.outputs[0].shape.as_list())
    own = WHOLE if own in rest else own
    return [Sharding((own, *rest), frozenset(values[: len(ids)]) - {WHOLE, own} - set(rest))]


def same_sizes(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Slices, pads, splits or tiles. A dimension stays sharded if its size stays the same."""
    x, axes = op.inputs[_DATA.get(op.type, 0)], reads.added_up(_DATA.get(op.type, 0))
    results = []
    for y in op.outputs:
        if x.shape.rank != y.shape.rank:
            return unknown(op, reads, shardings)
        for d, axis in enumerate(axes):
            if axis != WHOLE and x.shape[d] != y.shape[d]:
                reads.whole_along(_DATA.get(op.type, 0), d)
        results.append(Sharding(tuple(a if x.shape[d] == y.shape[d] else WHOLE for d, a in enumerate(axes))))
    return results


def concatenated(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Concatenates along a dimension that must be whole. Other dimensions are sharded like the inputs'."""
    known = tf.get_static_value(op.inputs[-1])
    if known is None:
        return unknown(op, reads, shardings)
    found = list(whole(op.outputs[0]).axes)
    along = int(known) % len(found)
    for i in range(len(op.inputs) - 1):
        for d, axis in enumerate(reads.added_up(i)):
            if axis == WHOLE:
                continue
            if d != along and (found[d] == axis or (found[d] == WHOLE and axis not in found)):
                found[d] = axis
            else:
                reads.whole_along(i, d)
    return [Sharding(tuple(found))]


def relaid(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Changes the layout to that of the operation, or to that of its second input."""
    to = shardings[1].axes if op.type == "RelayoutLike" else tuple(op.get_attr("layout").decode().split(","))
    for d, axis in enumerate(reads.added_up(0)):
        if axis not in (WHOLE, to[d]):
            reads.whole_along(0, d)
    return [Sharding(to)]


def sliced(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Takes a strided slice. Dimensions of unchanged size stay sharded; others must be whole."""
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
    """Returns the input's dimension for each dimension of a strided slice's result; `None` for a new one."""
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
