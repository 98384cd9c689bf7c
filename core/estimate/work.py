"""What a traced step does besides its products, and what it is to TensorFlow before it is run: so many nodes."""

from collections import Counter
from typing import Any

import tensorflow as tf

from core.estimate.graphs import called_by, same_buffer
from core.estimate.memory import bytes_of
from core.estimate.operations import performed, products_of

STARTED, PRODUCTS, MOVED, NODES = "operations started", "products among them", "bytes moved", "nodes"
# What TensorFlow takes out of a function before it runs it, or does without a kernel's work.
_NOTHING = {
    "Const", "Placeholder", "ReadVariableOp", "Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "NoOp",
    "VarHandleOp",
}  # fmt: skip
_PARTS = {"Gather", "GatherV2", "GatherNd", "ResourceGather", "Slice", "StridedSlice", "TensorListGetItem"}


def work_of(graph: Any) -> Counter[str]:
    """Counts the operations that a step starts, the bytes that those without products read and write, and all nodes."""
    started, products, moved = 0.0, 0.0, 0.0
    for op, times in performed(graph):
        if op.type in _NOTHING or same_buffer(op) or called_by(op) or _is_known(op):
            continue
        started += times
        if products_of(op):
            products += times
        else:
            made = sum(map(bytes_of, op.outputs))
            moved += times * (2 * made if op.type in _PARTS else made + sum(map(bytes_of, op.inputs)))
    found = {STARTED: started, PRODUCTS: products, MOVED: moved, NODES: nodes_of(graph)}
    return Counter({name: round(count) for name, count in found.items()})


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
