"""Searches traced graphs: finds operations inside loops, conditions and calls, and their lines of code."""

import linecache
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from core.tensorflow_private import function_graph

CORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
SAME_VALUES = {"Reshape", "Identity", "Squeeze", "ExpandDims", "Cast", "StridedSlice", "Transpose", "Slice", "Pad"}
TENSORFLOW = os.path.join(os.path.dirname(os.path.abspath(tf.__file__)), "")


def everything(operations: Iterable[Any]) -> Iterator[Any]:
    """Yields `operations`, and all operations inside the loops, conditions and calls among them."""
    for op in operations:
        yield op
        yield from bodies(op)


def bodies(op: Any) -> Iterator[Any]:
    """Yields all operations inside a loop, condition or call `op`, at any depth."""
    if op.type.removeprefix("Stateless").removeprefix("Stateful") not in ("While", "If", "Case", "PartitionedCall"):
        return
    for _, graph in functions_of(op):
        for inner in graph.get_operations():
            yield inner
            yield from bodies(inner)


def functions_of(op: Any) -> Iterator[tuple[str, Any]]:
    """Yields `(name, graph)` of each function that `op` calls, by the names of its attributes."""
    for _, attribute in sorted(op.node_def.attr.items()):  # protobuf's own order differs between processes
        for name in [x.name for x in (attribute.func, *attribute.list.func) if x.name]:
            graph = function_graph(op.graph, name)
            if graph is not None:
                yield name, graph


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yields `graph` and the graphs of all functions that it calls. Each comes once, callers before callees."""
    seen, ahead = set[str](), [graph]
    while ahead:
        here = ahead.pop(0)
        yield here
        for name, called in (each for op in here.get_operations() for each in functions_of(op)):
            if name not in seen:
                seen.add(name)
                ahead.append(called)


def ancestors(operations: Iterable[Any], *, control: bool = False) -> set[str]:
    """Returns the names of `operations` and of all operations on which they depend, within one graph.

    With `control`, control inputs count too.
    """
    found, ahead = set[str](), list(operations)
    while ahead:
        op = ahead.pop()
        if op.name not in found:
            found.add(op.name)
            ahead += [x.op for x in op.inputs]
            ahead += op.control_inputs if control else ()
    return found


def captured(graph: Any) -> dict[int, tf.Tensor]:
    """Returns `{id(outer tensor or handle): placeholder}` for the values that a function's graph captures."""
    return {id(outer): inner for outer, inner in graph.captures}


def frames(op: Any) -> list[Any]:
    """Returns the stack frames in which `op` was made, without TensorFlow's. The innermost is first."""
    return [frame for frame in reversed(list(op.traceback or ())) if not frame.filename.startswith(TENSORFLOW)]


def line(op: Any) -> str:
    """Returns the line of user code that made `op`: `at step.py:12 (`y = x + 1`)`."""
    own = next((f for f in frames(op) if not f.filename.startswith(CORE)), None)
    return said(own) if own else "in a layer or loss of `core`"


def said(frame: Any) -> str:
    """Formats a stack frame: `at step.py:12 (`y = x + 1`)`."""
    text = (frame.line or linecache.getline(frame.filename, frame.lineno)).strip()
    return f"at {os.path.basename(frame.filename)}:{frame.lineno}" + (f" (`{text}`)" if text else "")


def maker(tensor: tf.Tensor) -> Any:
    """Returns the operation that computed the values of `tensor`. Later reshapes, slices and casts are skipped."""
    op = tensor.op
    while op.type in SAME_VALUES or op.type == "SelectV2":
        op = op.inputs[2 if op.type == "SelectV2" else 0].op  # the losses' `zero_where` keeps its third input
    return op


def sigmoid_logits(op: Any) -> tf.Tensor | None:
    """Returns the logits if `op` is a binary cross-entropy's softplus, or its `log1p(exp(x))`; else `None`."""
    if op.type == "Softplus":
        tensor = op.inputs[0]
    elif op.type == "Log1p" and op.inputs[0].op.type == "Exp":  # as `tf.nn.sigmoid_cross_entropy_with_logits` does
        tensor = op.inputs[0].op.inputs[0]
    else:
        return None
    while tensor.op.type in ("SelectV2", "Select", "Neg", "Abs"):
        tensor = tensor.op.inputs[-1]
    return tensor


def is_own(op: Any) -> bool:
    """Says whether user code made `op`. Layers and losses of `core` don't count."""
    return not next(iter(frames(op))).filename.startswith(CORE)
