"""The door on a mesh: DTensor sends what has to be sent, so values are handed over in its layouts and it is watched."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.parallel.mesh.collectives import collectives_of
from core.parallel.mesh.read_order import kept_in_order
from core.parallel.mesh.strategy import MeshStrategy
from core.parallel.mesh.unsafe_ops import explained, refuse_unsafe


class MeshExchange(Exchange):
    """What the engine asks of a mesh, which is one replica."""

    def __init__(self, strategy: MeshStrategy, *, reduce_in: tf.DType | None = None):
        super().__init__(strategy, reduce_in=reduce_in)
        self.mesh_strategy = strategy

    def handed(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value, the same on all devices."""
        return self.mesh_strategy.handed(value)

    def taken(self, value: Any, dtype: tf.DType) -> Any:
        """Returns what `handed` handed over."""
        return self.mesh_strategy.taken(value, dtype)

    def by_rows(self, value: Any, axis: int) -> Any:
        """Returns the value cut along the axis `axis`, its rows, over the mesh's batch."""
        return self.mesh_strategy.by_rows(value, axis)

    def around(self) -> AbstractContextManager[Any]:
        """Returns what keeps the names of loops apart: they are the whole process's."""
        return self.mesh_strategy.names()

    def guarded(self, function: Any) -> Any:
        """Returns the function, unless it holds operations that DTensor gets wrong or dies of."""
        refuse_unsafe(function, self.mesh_strategy.plan.sizes.values())
        return function

    def noting(self, function: Any, *args: Any) -> Any:
        """Returns `function(*args)`; what DTensor makes of collectives in it is in the ledger then."""
        try:
            with kept_in_order(function):
                result, found = collectives_of(lambda: function(*args), self.mesh_strategy.mesh)
        except tf.errors.UnknownError as error:  # as which DTensor says what it can't lay out
            if "dtensor" not in str(error.message).lower():
                raise
            raise explained(error, function) from error
        self.ledger.clear()
        for entry in found:
            self.ledger.add(entry)
        return result
