"""Layout rules of arithmetic, and the table `RULES` of all layout rules by type of operation.

A rule computes the layouts of an operation's results on a mesh from those of its inputs.
"""

from collections.abc import Sequence

import tensorflow as tf

from core.estimate.movement import (
    concatenated,
    expanded,
    gathered,
    relaid,
    reshaped,
    same_sizes,
    segments,
    sliced,
    transposed,
)
from core.estimate.sharding import Reads, Rule, Sharding, unknown, whole
from core.parallel.mesh.layouts import WHOLE


def elementwise(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Shards the result like the inputs. The inputs' dimensions are aligned from the last one on."""
    rank = op.outputs[0].shape.rank or 0
    found, by = [WHOLE] * rank, dict[int, int]()
    for i, x in enumerate(op.inputs):
        for d, axis in enumerate(reads.added_up(i)):
            place = rank - (x.shape.rank or 0) + d
            if axis == WHOLE or place < 0:
                continue
            if found[place] == axis or (found[place] == WHOLE and axis not in found):
                found[place], by[place] = axis, i
            else:
                reads.whole_along(i, d)
    return [Sharding(tuple(found)) for _ in op.outputs]


def additive(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Adds. Partial sums along the same axes stay partial sums; any others are reduced first."""
    if all(one == shardings[0] for one in shardings) and shardings[0].parts_of:
        return [shardings[0]]
    reads.added_up_together([i for i, one in enumerate(shardings) if one.parts_of])
    return elementwise(op, reads, shardings)


def kept(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    return list(shardings[: len(op.outputs)])


def product(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Multiplies matrices. If the contracted dimension is sharded, the result is a partial sum."""
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    turned = [bool(op.get_attr(name)) for name in names]
    a, b = (list(reads.added_up(i)) for i in (0, 1))
    (a_rows, a_inner), (b_inner, b_columns) = (
        (len(x) - 1, len(x) - 2) if turn else (len(x) - 2, len(x) - 1) for x, turn in zip((a, b), turned, strict=True)
    )
    axis, other = a[a_inner], b[b_inner]
    if axis != other and WHOLE not in (axis, other):
        reads.whole_along(1, b_inner)
        other = WHOLE
    summed = axis if axis != WHOLE else other  # sharding the other operand costs nothing
    batch: list[str] = []
    for d in range(1, max(len(a), len(b)) - 1):
        sides = {x[-d - 2] for x in (a, b) if d + 2 <= len(x)} - {WHOLE}
        batch.insert(0, sides.pop() if len(sides) == 1 else WHOLE)
    result = [*batch, a[a_rows], b[b_columns]]
    for place, number, d in ((-1, 1, b_columns), (-2, 0, a_rows)):
        if result[place] != WHOLE and (result.count(result[place]) > 1 or result[place] == summed):
            reads.whole_along(number, d)
            result[place] = WHOLE
    return [Sharding(tuple(result), frozenset({summed} - {WHOLE}))]


def reduction(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Reduces dimensions. If one of them is sharded, the result is a partial sum."""
    axes = reads.added_up(0)
    given = tf.get_static_value(op.inputs[1]) if len(op.inputs) > 1 else list(range(len(axes)))
    if given is None:
        return unknown(op, reads, shardings)
    over = {int(d) % max(1, len(axes)) for d in (given.reshape(-1) if hasattr(given, "reshape") else given)}
    keeps = op.type != "L2Loss" and "keep_dims" in op.node_def.attr and op.get_attr("keep_dims")
    left = [WHOLE if d in over else axis for d, axis in enumerate(axes) if keeps or d not in over]
    return [Sharding(tuple(left), frozenset(axes[d] for d in over if d < len(axes)) - {WHOLE})]


def bias_gradient(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    axes = reads.added_up(0)
    return [Sharding(axes[-1:], frozenset(axes[:-1]) - {WHOLE})]


def softmax(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Normalises along the last dimension. If it is sharded, only maxima and sums per row are communicated."""
    axes = reads.added_up(0)
    return [Sharding(axes[: x.shape.rank]) for x in op.outputs]


_DATA = {"AvgPoolGrad": 1, "Conv2DBackpropInput": 2}  # the input with the rows, if it isn't the first


def by_rows(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Processes each row separately, as a convolution of images does. Only the rows may be sharded."""
    data = _DATA.get(op.type, 0)
    axes = reads.added_up(data)
    for i, x in enumerate(op.inputs):
        for d, axis in enumerate(reads.added_up(i)):
            if axis != WHOLE and not (d == 0 and x.shape[0] == op.inputs[data].shape[0]):
                reads.whole_along(i, d)
    return [Sharding((axes[0] if axes else WHOLE, *(WHOLE,) * ((y.shape.rank or 1) - 1))) for y in op.outputs]


def by_rows_summed(op: tf.Operation, reads: Reads, shardings: Sequence[Sharding]) -> list[Sharding]:
    """Sums over rows, like a convolution kernel's gradient. With sharded rows, the result is a partial sum."""
    return [whole(op.outputs[0])._replace(parts_of=frozenset(reads.added_up(0)[:1]) - {WHOLE})]


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Rule] = {
    **_all("AddV2 AddN Add", additive),
    **_all("Identity IdentityN StopGradient PreventGradient EnsureShape Cast Snapshot", kept),
    **_all(
        "Abs BiasAdd BitwiseAnd Bitcast Cos DivNoNan Equal Erf Exp Expm1 FloorDiv FloorMod Greater GreaterEqual "
        "IsFinite IsInf IsNan Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul Neg "
        "NotEqual OnesLike Pow RealDiv Relu ReluGrad RightShift Round Rsqrt RsqrtGrad SelectV2 Sigmoid SigmoidGrad "
        "Sign Sin Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad LeakyRelu LeakyReluGrad ZerosLike Softplus",
        elementwise,
    ),
    **_all("MatMul BatchMatMulV2", product),
    **_all("Sum Mean Prod L2Loss Max Min Any All ArgMax ArgMin", reduction),
    **_all("Softmax LogSoftmax SparseSoftmaxCrossEntropyWithLogits", softmax),
    **_all("BroadcastTo Pad PadV2 Slice Split StridedSliceGrad Tile", same_sizes),
    **_all("Conv2D Conv2DBackpropInput MaxPool MaxPoolGrad AvgPool AvgPoolGrad ResizeBilinear", by_rows),
    "Conv2DBackpropFilter": by_rows_summed,
    "BiasAddGrad": bias_gradient,
    "ConcatV2": concatenated,
    "ExpandDims": expanded,
    "GatherV2": gathered,
    "ResourceGather": gathered,
    "Relayout": relaid,
    "RelayoutLike": relaid,
    "Reshape": reshaped,
    "Squeeze": reshaped,
    "StridedSlice": sliced,
    "Transpose": transposed,
    "UnsortedSegmentSum": segments,
}
NOT_ADDED_UP_LATER = {"All", "Any", "ArgMax", "ArgMin", "Max", "Min", "Prod"}  # whose parts aren't partial sums
