"""Kinds of operations in a step. A kind includes all that an operation's speed depends on, so it can be timed alone."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core.estimate.graphs import called_by, same_buffer
from core.estimate.memory import bytes_of
from core.estimate.operations import performed, products_of
from core.tensorflow_private import get_resource_handle_data

# Operations that TensorFlow removes before running a function, or that run no kernel.
_NOTHING = {
    "Const", "Placeholder", "ReadVariableOp", "Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "NoOp",
    "VarHandleOp",
}  # fmt: skip
_UPDATES = ("ResourceApply", "AssignAddVariableOp", "AssignSubVariableOp")
_OF_VARIABLES = (*_UPDATES, "ResourceGather", "ResourceScatter", "ResourceSparseApply")
_PARTS = {"Gather", "GatherV2", "GatherNd", "ResourceGather", "Slice", "StridedSlice", "TensorListGetItem"}
_OF_ANY_NUMBERS = ("GatherV2", "Resource", "SparseSoftmaxCrossEntropyWithLogits")  # for which integers are data
_FOLDED: dict[str, Callable[..., Any]] = {"InvertPermutation": np.argsort, "Sub": np.subtract}  # as in gradients
_FEW = 16  # numbers of an operand that configures the operation: an axis, a shape, an exponent


class Operand(NamedTuple):
    """An input of an operation: dtype and shape. If its values configure the operation, it has these too."""

    dtype: tf.DType
    shape: tuple[int, ...]
    values: bytes | None = None  # as bytes, so that NaN equals itself
    in_variable: bool = False

    def made(self) -> tf.Tensor | tf.Variable:
        """Makes a dummy operand: the given `values`, else ones, or zeros for integers."""
        if self.values is not None:
            return tf.constant(np.frombuffer(self.values, self.dtype.as_numpy_dtype).reshape(self.shape))
        made = (tf.ones if self.dtype.is_floating else tf.zeros)(self.shape, self.dtype)
        return tf.Variable(made) if self.in_variable else made


class Kind(NamedTuple):
    """A kind of operation: type, serialised attributes and operands. Operations of one kind take equal time."""

    type: str
    attributes: tuple[tuple[str, bytes], ...]
    operands: tuple[Operand, ...] | None  # None if the operation can't run alone
    operations: int  # floating-point operations, if it is a matmul or convolution
    bytes: int  # that it reads and writes

    def of(self, operands: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
        """Adds an operation with these operands to the graph. Returns its result, or a constant made after it."""
        graph: Any = tf.compat.v1.get_default_graph()
        given = [x.made() if x.values is not None else y for x, y in zip(self.operands or (), operands, strict=True)]
        attributes = {name: tf.compat.v1.AttrValue.FromString(written) for name, written in self.attributes}
        handles = [x.handle if isinstance(x, tf.Variable) else x for x in given]
        done = graph.create_op(self.type, handles, attrs=attributes)
        if done.outputs:
            return done.outputs[0]
        with tf.control_dependencies([done]):
            return tf.constant(0.0)


def kinds_in(graph: Any) -> Mapping[Kind, float]:
    """Returns `{kind: number}` of the operations that a traced function and its callees start."""
    found = defaultdict[Kind, float](float)
    for op, times in performed(graph):
        if kind := kind_started(op):
            found[kind] += times
    return found


def kind_started(op: tf.Operation) -> Kind | None:
    """Returns the kind of `op`, or `None` if TensorFlow starts no kernel for it."""
    nothing = op.type in _NOTHING or same_buffer(op) or called_by(op) or _is_known(op) or _part_of_a_product(op)
    return None if nothing else _kind(op)


def _kind(op: tf.Operation) -> Kind:
    made, read, operations = sum(map(bytes_of, op.outputs)), sum(map(bytes_of, op.inputs)), 2 * products_of(op)
    variables = [x for x in map(_variable, op.inputs) if x is not None] if op.type.startswith(_UPDATES) else []
    rewritten = 2 * sum(math.prod(x.shape) * x.dtype.size for x in variables)
    size = 2 * made if op.type in _PARTS else made + read + rewritten
    operands = [_variable(x) or _operand(op, x) for x in op.inputs] if _stands_alone(op) else [None]
    known = tuple(operand for operand in operands if operand is not None)
    if len(known) < len(operands):
        return Kind(op.type, (), None, operations, size)
    attributes = op.node_def.attr
    said = tuple((name, attributes[name].SerializeToString()) for name in sorted(attributes) if name[0] != "_")
    return Kind(op.type, said, known, operations, size)


def _stands_alone(op: tf.Operation) -> bool:
    """Says whether `op` can be timed alone: it computes floats of known shapes, or reads or updates variables."""
    known = all(x.shape.num_elements() for x in [*op.inputs, *op.outputs] if x.dtype != tf.resource)
    functions = any(attribute.HasField("func") for attribute in op.node_def.attr.values())
    computes = not op.op_def.is_stateful and op.outputs and op.outputs[0].dtype.is_floating
    return known and not functions and (computes or op.type.startswith(_OF_VARIABLES))


def _variable(x: tf.Tensor) -> Operand | None:
    """Returns the variable behind a handle as an operand. Other tensors and unknown shapes give `None`."""
    held = get_resource_handle_data(x) if x.dtype == tf.resource else None
    if held is None or len(held.shape_and_type) != 1 or held.shape_and_type[0].shape.unknown_rank:
        return None
    (kind,) = held.shape_and_type
    shape = tuple(dim.size for dim in kind.shape.dim)
    return Operand(tf.as_dtype(kind.dtype), shape, in_variable=True) if min(shape, default=0) >= 0 else None


def _operand(op: tf.Operation, x: tf.Tensor) -> Operand | None:
    """Returns the input `x` of `op` as an operand, or `None` if its values matter but aren't known."""
    shape, values, whole = tuple(x.shape), None, x.dtype.is_integer
    if math.prod(shape) <= _FEW and (known := _value(x)) is not None:
        values = np.asarray(known, x.dtype.as_numpy_dtype).tobytes()
    elif products_of(op) and whole:  # a convolution's gradient takes the shape of its result
        values = np.array(op.outputs[0].shape, x.dtype.as_numpy_dtype).tobytes()
    elif (op.type == "Pow" and not shape) or (whole and not op.type.startswith(_OF_ANY_NUMBERS)):
        return None
    return Operand(x.dtype, shape, values) if whole or x.dtype.is_floating or x.dtype.is_bool else None


def _value(x: tf.Tensor) -> Any:
    """Returns a tensor's values if TensorFlow knows them before running the graph, else `None`."""
    fold = _FOLDED.get(x.op.type)
    known = [tf.get_static_value(each) for each in x.op.inputs] if fold else [None]
    return tf.get_static_value(x) if fold is None or any(each is None for each in known) else fold(*known)


def _part_of_a_product(op: tf.Operation) -> bool:
    """Says whether TensorFlow fuses `op`, a bias or ReLU, with the matmul or convolution before it."""
    before = op.inputs[0].op if op.inputs else op
    if op.type == "BiasAdd":
        return products_of(before) > 0
    return op.type == "Relu" and before.type == "BiasAdd" and _part_of_a_product(before)


def _is_known(op: tf.Operation) -> bool:
    """Says whether `op` depends on constants alone. TensorFlow computes such an operation only once."""
    return bool(op.inputs) and all(x.op.type == "Const" for x in op.inputs) and not op.op_def.is_stateful
