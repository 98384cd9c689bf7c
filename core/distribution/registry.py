"""Which door a strategy has."""

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.distribution.mesh_exchange import MeshExchange
from core.distribution.mesh_strategy import MeshStrategy
from core.distribution.served_exchange import ServedExchange
from core.distribution.served_strategy import ServedStrategy


def exchange_of(strategy: tf.distribute.Strategy, *, reduce_in: tf.DType | None = None) -> Exchange:
    """Returns the door of a strategy; float32 gradients go through it as `reduce_in`, where that is given."""
    if isinstance(strategy, MeshStrategy):
        return MeshExchange(strategy, reduce_in=reduce_in)
    if isinstance(strategy, ServedStrategy):
        return ServedExchange(strategy, reduce_in=reduce_in)
    return Exchange(strategy, reduce_in=reduce_in)
