"""What a traced step does besides its products, and what it is to TensorFlow before it is run: so many nodes."""

import math
from collections import Counter
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from core.estimate.graphs import CHOICES, called_by, is_loop, same_buffer
from core.estimate.memory import bytes_of
from core.estimate.operations import performed, products_of

STARTED, TURNS, NODES = "operations started", "turns of loops and choices", "nodes"
MOVED, NEAR = "bytes moved", "bytes moved of small tensors"
CACHED = 2**20  # bytes of an operation's tensors that a core's own cache still holds when the next one reads them
# What TensorFlow takes out of a function before it runs it, or does without a kernel's work.
_NOTHING = {
    "Const", "Placeholder", "ReadVariableOp", "Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "NoOp",
    "VarHandleOp",
}  # fmt: skip
_UPDATES = ("ResourceApply", "AssignAddVariableOp", "AssignSubVariableOp")
_IN_A_ROUND = 4  # of a value
_PARTS = {"Gather", "GatherV2", "GatherNd", "ResourceGather", "Slice", "StridedSlice", "TensorListGetItem"}


def work_of(graph: Any) -> Counter[str]:
    """Counts the operations that a step starts, the bytes that those without products read and write, and all nodes."""
    started, turns, moved, near = 0.0, 0.0, 0.0, 0.0
    for op, times in performed(graph):
        turns += times * _turns(op)
        if op.type in _NOTHING or same_buffer(op) or called_by(op) or _is_known(op) or _part_of_a_product(op):
            continue
        started += times
        if not products_of(op):
            made = sum(map(bytes_of, op.outputs))
            size = 2 * made if op.type in _PARTS else made + sum(map(bytes_of, op.inputs)) + _rewritten(op)
            if size <= CACHED:
                near += times * size
            else:
                moved += times * size
    found = {STARTED: started, TURNS: turns, MOVED: moved, NEAR: near, NODES: nodes_of(graph)}
    return Counter({name: round(count) for name, count in found.items()})


def _part_of_a_product(op: tf.Operation) -> bool:
    """Says whether TensorFlow would do `op` together with the product whose result it reads."""
    before = op.inputs[0].op if op.inputs else op
    if op.type == "BiasAdd":
        return products_of(before) > 0
    return op.type == "Relu" and before.type == "BiasAdd" and _part_of_a_product(before)


def _rewritten(op: tf.Operation) -> int:
    """Counts the bytes of variables that `op` reads and writes again."""
    if not op.type.startswith(_UPDATES):
        return 0
    handles = [handle_data_util.get_resource_handle_data(x) for x in op.inputs if x.dtype == tf.resource]
    kinds = [kind for data in handles for kind in data.shape_and_type]
    return 2 * sum(math.prod(dim.size for dim in x.shape.dim) * tf.as_dtype(x.dtype).size for x in kinds)


def _turns(op: tf.Operation) -> int:
    """Counts what TensorFlow puts in a loop's or a choice's place, which it runs too.

    Each value that a loop hands on is merged, switched, named and handed to the next round; one that a choice reads is
    switched, and what it makes is merged.
    """
    if is_loop(op):
        return called_by(op)[0].times * _IN_A_ROUND * sum(x.dtype != tf.resource for x in op.inputs)
    return len(op.inputs) + len(op.outputs) if op.type in CHOICES else 0


def nodes_of(graph: Any) -> int:
    """Counts the operations of a traced function and of what it calls, whether they ever run or not."""
    ahead, seen = [graph], {id(graph): 0}
    while ahead:
        one = ahead.pop()
        ops = one.get_operations()
        seen[id(one)] = len(ops)
        for called in (called for op in ops for called in called_by(op)):
            if id(called.graph) not in seen:
                seen[id(called.graph)] = 0
                ahead.append(called.graph)
    return sum(seen.values())


def _is_known(op: tf.Operation) -> bool:
    """Says whether what `op` makes is known from constants alone: it is then computed once for all."""
    return bool(op.inputs) and all(x.op.type == "Const" for x in op.inputs) and not op.op_def.is_stateful
