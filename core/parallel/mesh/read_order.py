"""Keeps DTensor from moving the read of a variable ahead of an earlier write to it.

DTensor merges sums over devices whose values don't depend on each other. Then operations that a merged sum needs run
before it, and operations that need the sum run after it. A write waits for a summed gradient. But a later read has only
a control dependency on the write, so DTensor may run it first. A generator would learn from the previous step's
discriminator.
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
    """In its `with` block, DTensor compiles `function` without merged sums, if they could change its results."""
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
    """Says whether two operations use one variable, one of them writes, and DTensor could reorder them."""
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
