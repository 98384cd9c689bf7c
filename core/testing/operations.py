"""Reads a traced step's operations: on which features a tensor depends, and reductions over rows and time."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

VARIABLE = "a variable"  # a possible source of a tensor, besides features of the batch


def sources(operations: Iterable[Any], features: Mapping[str, tf.Tensor]) -> dict[str, frozenset[str]]:
    """Returns `{operation name: features on which it depends}`. `VARIABLE` is among them for variables."""
    known = {tensor.op.name: frozenset({key}) for key, tensor in features.items()}
    for op in operations:  # in the order of creation, so the inputs of each are known
        if op.name not in known:
            own = {VARIABLE} if any(x.dtype == tf.resource for x in op.inputs) else set()
            known[op.name] = frozenset(own.union(*(known.get(x.op.name, ()) for x in op.inputs)))
    return known


def is_over_time(op: Any, rows: int) -> bool:
    """Says whether `op` reduces `[rows, time]` to one value per row."""
    if op.type not in ("Sum", "Mean") or op.inputs[0].shape.rank != 2 or op.outputs[0].shape.as_list() != [rows]:
        return False
    axes = tf.get_static_value(op.inputs[1])
    return op.inputs[0].shape[0] == rows and axes is not None and set(axes.reshape(-1).tolist()) in ({1}, {-1})


def reductions(operations: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yields each operation that reduces over the rows, with a sum, mean, product, maximum or minimum."""
    for op in operations:
        if op.type not in ("Mean", "Sum", "Max", "Min", "Prod") or not op.inputs[0].shape.rank:
            continue
        before, axes = op.inputs[0].shape, tf.get_static_value(op.inputs[1])
        if before[0] == rows and axes is not None and any(a % before.rank == 0 for a in axes.reshape(-1).tolist()):
            yield op
