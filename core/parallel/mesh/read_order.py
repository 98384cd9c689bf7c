"""Keeps reads of variables after the writes that they follow, where DTensor could reorder them.

DTensor merges sums over devices that don't depend on each other's values. Operations before a sum are moved before the
merged one, and those that depend on it after it. A write waits for its gradient, but a read with only a control
dependency on the write moves ahead, since its value depends on nothing. So a generator would learn from the previous
step's discriminator.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from core.graphs import ancestors, graphs_of

_MOST_JOINED = "DTENSOR_ALLREDUCE_COMBINE_OPTIMIZATION_GROUP_SIZE"


@contextlib.contextmanager
def kept_in_order(function: Any) -> Iterator[None]:
    """Prevents merged sums in the first run of the concrete `function`, if its results depend on their order."""
    if not any(_hangs_on_order(graph) for graph in graphs_of(function.graph)):
        yield
        return
    before = os.environ.get(_MOST_JOINED)
    os.environ[_MOST_JOINED] = "1"  # DTensor reads it each time it compiles
    try:
        yield
    finally:
        os.environ.pop(_MOST_JOINED)
        if before is not None:
            os.environ[_MOST_JOINED] = before


def _hangs_on_order(graph: Any) -> bool:
    """Says whether a variable is used after an earlier use that may be delayed, one of them a write."""
    users: dict[int, list[tuple[tf.Operation, bool]]] = {}  # with whether they write, by the id of a variable's handle
    for op in graph.get_operations():
        if any(value.dtype == tf.resource for value in op.inputs):
            reads, writes = get_read_write_resource_inputs(op)
            for handles, written in ((reads, False), (writes, True)):
                for handle in handles:
                    users.setdefault(id(handle), []).append((op, written))
    behind: dict[tf.Operation, set[str]] = {}  # the names of the operations that its value depends on
    for found in users.values():
        for i, (later, written) in enumerate(found):
            for earlier, written_before in found[:i]:
                # A read waits for nothing, so nothing that comes after it can overtake it.
                if written_before or (written and earlier.type != "ReadVariableOp"):
                    if later not in behind:
                        behind[later] = ancestors(value.op for value in later.inputs)
                    if earlier.name not in behind[later]:
                        return True
    return False
