"""Traced graphs: operations within loops, conditions and calls, and the code that made each value."""

import linecache
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

CORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
SAME_VALUES = {"Reshape", "Identity", "Squeeze", "ExpandDims", "Cast", "StridedSlice", "Transpose", "Slice", "Pad"}
TENSORFLOW = os.path.join(os.path.dirname(os.path.abspath(tf.__file__)), "")


def everything(operations: Iterable[Any]) -> Iterator[Any]:
    """Yields the operations, and those in the bodies of their loops, conditions and calls."""
    for op in operations:
        yield op
        yield from bodies(op)


def bodies(op: Any) -> Iterator[Any]:
    """Yields the operations in a loop's body, a condition's branches or a called function, recursively."""
    if op.type.removeprefix("Stateless").removeprefix("Stateful") not in ("While", "If", "Case", "PartitionedCall"):
        return
    for _, graph in functions_of(op):
        for inner in graph.get_operations():
            yield inner
            yield from bodies(inner)


def functions_of(op: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and graphs of the functions that `op` calls."""
    for attribute in op.node_def.attr.values():
        for name in [x.name for x in (attribute.func, *attribute.list.func) if x.name]:
            graph = getattr(op.graph._get_function(name), "graph", None)  # TensorFlow has no public function for this
            if graph is not None:
                yield name, graph


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yields a graph and those of the functions that it calls, each once, callers first."""
    seen, ahead = set[str](), [graph]
    while ahead:
        here = ahead.pop(0)
        yield here
        for name, called in (each for op in here.get_operations() for each in functions_of(op)):
            if name not in seen:
                seen.add(name)
                ahead.append(called)


def ancestors(operations: Iterable[Any], *, control: bool = False) -> set[str]:
    """Returns the names of the operations and of all that they depend on within their graph.

    With `control`, an operation depends on its control inputs, too.
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
    """Returns a function graph's placeholders by the ids of the outer tensors or handles that they stand for."""
    return {id(outer): inner for outer, inner in graph.captures}


def frames(op: Any) -> list[Any]:
    """Returns the stack frames that made `op`, without TensorFlow's, the innermost first."""
    return [frame for frame in reversed(list(op.traceback or ())) if not frame.filename.startswith(TENSORFLOW)]


def line(op: Any) -> str:
    """Returns the line of code that made `op` as `at step.py:12 (`y = x + 1`)`."""
    own = next((f for f in frames(op) if not f.filename.startswith(CORE)), None)
    return said(own) if own else "in a layer or loss of `core`"


def said(frame: Any) -> str:
    """Returns the line of a frame as `at step.py:12 (`y = x + 1`)`."""
    text = (frame.line or linecache.getline(frame.filename, frame.lineno)).strip()
    return f"at {os.path.basename(frame.filename)}:{frame.lineno}" + (f" (`{text}`)" if text else "")


def maker(tensor: tf.Tensor) -> Any:
    """Returns the operation that computed the values of `tensor`, which may have been reshaped or sliced since."""
    op = tensor.op
    while op.type in SAME_VALUES or op.type == "SelectV2":
        op = op.inputs[2 if op.type == "SelectV2" else 0].op  # the losses' `zero_where` keeps its third input
    return op


def sigmoid_logits(op: Any) -> tf.Tensor | None:
    """Returns the logits of a binary cross-entropy: the input of a softplus, also if it is written out."""
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
    """Says whether a step's own code made `op`, not a layer or loss of `core`."""
    return not next(iter(frames(op))).filename.startswith(CORE)
