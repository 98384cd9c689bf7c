"""What a traced function is made of: its operations, what each hangs on, and the line of code that made it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.graphs import CORE, frames

VARIABLE = "a variable"  # among the sources of a tensor; the others are features of the batch
SAME_VALUES = {"Reshape", "Identity", "Squeeze", "ExpandDims", "Cast", "StridedSlice", "Transpose", "Slice", "Pad"}


def sources(operations: Iterable[Any], features: Mapping[str, tf.Tensor]) -> dict[str, frozenset[str]]:
    """Returns by the name of each operation the features that it hangs on, and `VARIABLE` where it reads any."""
    known = {tensor.op.name: frozenset({key}) for key, tensor in features.items()}
    for op in operations:  # in the order in which they were made, so the inputs of each are known
        if op.name not in known:
            own = {VARIABLE} if any(x.dtype == tf.resource for x in op.inputs) else set()
            known[op.name] = frozenset(own.union(*(known.get(x.op.name, ()) for x in op.inputs)))
    return known


def maker(tensor: tf.Tensor) -> Any:
    """Returns the operation that computed the values of `tensor`, which may have been reshaped or cut since."""
    op = tensor.op
    while op.type in SAME_VALUES or op.type == "SelectV2":
        op = op.inputs[2 if op.type == "SelectV2" else 0].op  # `zero_where` of the losses keeps its third input
    return op


def sigmoid_logits(op: Any) -> tf.Tensor | None:
    """Returns the logits of a binary cross-entropy: what a softplus takes, also one that is written out."""
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
    """Says whether a step's own code made `op`, rather than a layer or loss of `core` on the way."""
    return not next(iter(frames(op))).filename.startswith(CORE)


def is_over_time(op: Any, rows: int) -> bool:
    """Says whether `op` adds up `[rows, time]` to one figure for each row."""
    if op.type not in ("Sum", "Mean") or op.inputs[0].shape.rank != 2 or op.outputs[0].shape.as_list() != [rows]:
        return False
    axes = tf.get_static_value(op.inputs[1])
    return op.inputs[0].shape[0] == rows and axes is not None and set(axes.reshape(-1).tolist()) in ({1}, {-1})


def reductions(operations: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yields each operation that takes a sum, mean or extreme over the rows."""
    for op in operations:
        if op.type not in ("Mean", "Sum", "Max", "Min", "Prod") or not op.inputs[0].shape.rank:
            continue
        before, axes = op.inputs[0].shape, tf.get_static_value(op.inputs[1])
        if before[0] == rows and axes is not None and any(a % before.rank == 0 for a in axes.reshape(-1).tolist()):
            yield op
