"""A traced function on a mesh: refuses unsafe operations, and logs DTensor's collectives at the first call."""

from typing import Any

import tensorflow as tf

from core.distribution import Ledger
from core.parallel.mesh.collectives import collectives_of
from core.parallel.mesh.read_order import kept_in_order
from core.parallel.mesh.strategy import MeshStrategy
from core.parallel.mesh.unsafe_ops import explained, refuse_unsafe


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
