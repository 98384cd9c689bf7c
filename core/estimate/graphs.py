"""Reads traced functions: their operations, the functions that they call, and the number of calls."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.graphs import ancestors, functions_of
from core.tensorflow_private import body_of_loop, branches, condition_of_loop

_KEPT, _NEEDED = "_functions_that_it_calls", "_operations_that_are_needed"
_LOOPS = ("While", "StatelessWhile")
CHOICES = ("If", "StatelessIf", "Case", "StatelessCase")
# Operations whose outputs share the buffers of their inputs: of the first input, or of each.
_SAME_BUFFER = {
    "Bitcast", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "PreventGradient", "Reshape", "Squeeze",
    "StopGradient",
}  # fmt: skip


class Called(NamedTuple):
    """A function that an operation calls, and where its arguments begin among the inputs of the operation."""

    graph: Any
    first: int  # index of the operation's first input that is an argument
    times: int  # number of calls


def called_by(op: tf.Operation) -> list[Called]:
    """Returns the functions that `op` calls: a loop's body, the branches of a condition, or a direct call.

    Each time it returns the same graph objects, so that they can be compared by identity.
    """
    if not hasattr(op, _KEPT):
        setattr(op, _KEPT, _called_by(op))
    found: list[Called] = getattr(op, _KEPT)
    return found


def _called_by(op: tf.Operation) -> list[Called]:
    if op.type in _LOOPS:
        return [Called(body_of_loop(op), 0, times(op))]
    if op.type in CHOICES:
        return [Called(graph, 1, 1) for graph in branches(op)]
    if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        return [Called(graph, 0, 1) for _, graph in functions_of(op)]
    return []


def is_loop(op: tf.Operation) -> bool:
    return op.type in _LOOPS


def times(op: tf.Operation) -> int:
    """Returns a loop's number of iterations if it counts to a known number, else 1."""
    condition = condition_of_loop(op)
    bounds = [
        bound
        for less in condition.get_operations()
        if less.type == "Less" and (bound := _known(less.inputs[1], condition, op)) is not None
    ]
    return max(1, min(bounds, default=1))


def _known(tensor: tf.Tensor, graph: Any, op: tf.Operation) -> int | None:
    """Returns the value of an integer in a loop's condition, or `None`. It may come from outside the loop."""
    while True:
        value = tf.get_static_value(tensor)
        if value is not None:
            return int(value)
        if tensor.op.type in _LOOPS and tensor.value_index == 0:  # its iterations, as many as its gradient's
            return times(tensor.op)
        if tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
            continue
        places = [i for i, x in enumerate(graph.inputs) if x.name == tensor.name]
        if not places or op is None or places[0] >= len(op.inputs):
            return None
        tensor, graph, op = op.inputs[places[0]], op.graph, None


def same_buffer(op: tf.Operation) -> bool:
    """Says whether the result of `op` shares the memory of its input."""
    return op.type in _SAME_BUFFER


def read_by(op: tf.Operation) -> Sequence[tf.Tensor]:
    """Returns the inputs whose values `op` reads. (The second input of `RelayoutLike` only gives a layout.)"""
    return list(op.inputs)[:1] if op.type == "RelayoutLike" else list(op.inputs)


def writes(graph: Any) -> bool:
    """Says whether a traced function writes variables."""
    return any(op.type.startswith(("Resource", "Assign")) and not op.outputs for op in graph.get_operations())


def handed_through(graph: Any) -> dict[int, int]:
    """Returns the arguments that a function returns unchanged, `{output index: argument index}`."""
    places = {x.name: i for i, x in enumerate(graph.inputs)}
    found = {}
    for i, tensor in enumerate(graph.outputs):
        while same_buffer(tensor.op) and tensor.op.type != "IdentityN":
            tensor = tensor.op.inputs[0]
        if tensor.name in places:
            found[i] = places[tensor.name]
    return found


def needed(graph: Any) -> list[tf.Operation]:
    """Returns the operations that a function's results and writes depend on. TensorFlow prunes all others."""
    if not hasattr(graph, _NEEDED):
        ops = graph.get_operations()
        ahead = [op for op in ops if op.op_def is None or op.op_def.is_stateful or op.type == "Placeholder"]
        ahead += [x.op for x in graph.outputs]
        found = ancestors(ahead, control=True)
        setattr(graph, _NEEDED, [op for op in ops if op.name in found])
    kept: list[tf.Operation] = getattr(graph, _NEEDED)
    return kept


def merged(ops: Sequence[tf.Operation]) -> dict[str, str]:
    """Returns `{tensor name: name of an earlier equal tensor}`. TensorFlow computes equal tensors once."""
    first: dict[Any, tf.Operation] = {}
    same: dict[str, str] = {}
    for op in ops:
        if op.op_def is None or op.op_def.is_stateful or op.type in ("Placeholder", *_LOOPS, *CHOICES):
            continue
        attributes = op.node_def.attr
        inputs = tuple(same.get(x.name, x.name) for x in op.inputs)
        said = tuple(sorted((name, attributes[name].SerializeToString()) for name in attributes if name[0] != "_"))
        before = first.setdefault((op.type, inputs, op.device, said), op)
        if before is not op:
            same |= {x.name: kept.name for x, kept in zip(op.outputs, before.outputs, strict=True)}
    return same
