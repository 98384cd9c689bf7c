"""A traced function on a mesh: refuses unsafe operations, and logs DTensor's collectives at the first call.

`kept_in_order` keeps DTensor from moving the read of a variable ahead of an earlier write to it. DTensor merges sums
over devices whose values don't depend on each other. Then operations that a merged sum needs run before it, and
operations that need the sum run after it. A write waits for a summed gradient. But a later read has only a control
dependency on the write, so DTensor may run it first. A generator would learn from the previous step's discriminator.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from core.distribution import Ledger
from core.graphs import ancestors, graphs_of
from core.parallel.mesh.collectives import collectives_of
from core.parallel.mesh.strategy import MeshStrategy
from core.parallel.mesh.unsafe_ops import explained, refuse_unsafe
from core.tensorflow_private import get_read_write_resource_inputs

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


class MeshProgram:
    """Calls a concrete function. The first call compiles the function, and logs its collectives in `ledger`."""

    def __init__(self, function: Any, strategy: MeshStrategy, ledger: Ledger):
        refuse_unsafe(function, strategy.plan.sizes.values())
        self.graph = function.graph
        self._function, self._mesh, self._ledger, self._called = function, strategy.mesh, ledger, False

    def __call__(self, *args: Any) -> Any:
        return self._function(*args) if self._called else self._first_call(*args)

    def _first_call(self, *args: Any) -> Any:
        try:
            with kept_in_order(self._function):
                result, found = collectives_of(lambda: self._function(*args), self._mesh)
        except tf.errors.UnknownError as error:  # DTensor's error for an operation that it can't lay out
            if "dtensor" not in str(error.message).lower():
                raise
            raise explained(error, self._function) from error
        self._called = True
        self._ledger.clear()
        for entry in found:
            self._ledger.add(entry)
        return result
