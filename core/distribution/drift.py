"""The drift alarm: do all replicas still hold the same variables, to the bit?

Each variable is boiled down to one number per replica: a sum of its bits, weighted by odd numbers so that places count,
modulo 2^64. A single changed bit changes it for certain, and anything else almost surely.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from core.distribution.exchange import Exchange
from core.errors import DriftError

_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


def make_drift_check(strategy: tf.distribute.Strategy, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
    """A function that raises a `DriftError` naming the variables, and the replicas that differ from replica 0."""
    exchange = Exchange(strategy)

    @tf.function(autograph=False)
    def fingerprints() -> tf.Tensor:
        def replica() -> tf.Tensor:
            own = tf.stack([fingerprint(v.read_value()) for v in variables.values()])
            place = tf.distribute.get_replica_context().replica_id_in_sync_group
            row = tf.one_hot(place, exchange.replicas, on_value=1, off_value=0, dtype=tf.int64)
            return exchange.sum(row[:, tf.newaxis] * own, phase="drift", what="fingerprints")

        return exchange.first(exchange.run(replica))

    def check() -> None:
        if exchange.replicas == 1:
            return
        table = fingerprints().numpy()
        differs = table != table[0]
        if not np.any(differs):
            return
        paths = np.array(list(variables))[differs.any(axis=0)]
        replicas = np.flatnonzero(differs.any(axis=1))
        raise DriftError(
            f"{_listed([f'replica {i}' for i in replicas])} of {exchange.replicas} no longer hold what replica 0 does: "
            f"{_listed([f'`{path}`' for path in paths])} ({len(paths)} of {len(variables)} variables). Nothing was "
            "saved. Look for a step function that assigns a variable itself, or draws numbers from anywhere but its "
            "`rng`; if there is none, for a faulty device. The last checkpoint is from before."
        )

    return check


def fingerprint(value: tf.Tensor) -> tf.Tensor:
    """One int64 that stands for all bits of a tensor and their places."""
    if value.dtype == tf.bool:
        bits = tf.cast(value, tf.int64)
    else:
        bits = tf.cast(tf.bitcast(value, _INTEGERS[value.dtype.size]), tf.int64)
    bits = tf.reshape(bits, [-1])
    return tf.reduce_sum(bits * (2 * tf.range(tf.size(bits, tf.int64), dtype=tf.int64) + 1))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" and more" if len(names) > 4 else "")
