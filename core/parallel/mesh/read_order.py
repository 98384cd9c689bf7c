"""Keeps reads of variables after the writes that they follow, where DTensor would let them overtake.

DTensor joins sums over devices that don't depend on each other's values. What comes before a sum is moved in front of
the joined one, and what hangs on it behind: a write waits for its gradient, and a read that is told to come after it
goes ahead, for a read's value hangs on nothing. So a generator would learn from the discriminator of the step before.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from core.parallel.mesh.unsafe_ops import graphs_of

_MOST_JOINED = "DTENSOR_ALLREDUCE_COMBINE_OPTIMIZATION_GROUP_SIZE"


@contextlib.contextmanager
def kept_in_order(function: Any) -> Iterator[None]:
    """Lets the first run of the concrete `function`, within it, join no sums if its numbers hang on their order."""
    if not any(_hangs_on_order(graph) for graph in graphs_of(function.graph)):
        yield
        return
    before = os.environ.get(_MOST_JOINED)
    os.environ[_MOST_JOINED] = "1"  # which DTensor reads each time it compiles
    try:
        yield
    finally:
        os.environ.pop(_MOST_JOINED)
        if before is not None:
            os.environ[_MOST_JOINED] = before


def _hangs_on_order(graph: Any) -> bool:
    """Says whether a variable is used after a use that may take longer, one of them a write, without its value."""
    users: dict[int, list[tuple[tf.Operation, bool]]] = {}  # and whether they write, by the id of a variable's handle
    for op in graph.get_operations():
        if any(value.dtype == tf.resource for value in op.inputs):
            reads, writes = get_read_write_resource_inputs(op)
            for handles, written in ((reads, False), (writes, True)):
                for handle in handles:
                    users.setdefault(id(handle), []).append((op, written))
    behind: dict[tf.Operation, set[tf.Operation]] = {}
    for found in users.values():
        for i, (later, written) in enumerate(found):
            for earlier, written_before in found[:i]:
                # A read waits for nothing, so nothing that comes after it goes ahead of it.
                if written_before or (written and earlier.type != "ReadVariableOp"):
                    if later not in behind:
                        behind[later] = _behind(later)
                    if earlier not in behind[later]:
                        return True
    return False


def _behind(op: tf.Operation) -> set[tf.Operation]:
    """Returns the operations whose values those of `op` hang on."""
    found, ahead = set[tf.Operation](), [op]
    while ahead:
        for value in ahead.pop().inputs:
            if value.op not in found:
                found.add(value.op)
                ahead.append(value.op)
    return found
