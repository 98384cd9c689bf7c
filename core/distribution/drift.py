"""Replica consistency check: whether all replicas hold the same variables, bit for bit.

Each replica reduces each variable to one fingerprint. A fingerprint is the sum, modulo 2^64, of the values' bits, each
times an odd number that depends on the value's position. One changed bit always changes the fingerprint; several almost
surely do. Variables are processed one by one, large ones in blocks, so the check fits into the memory of a step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import listed
from core.distribution.exchange import Exchange
from core.errors import DriftError

_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
_BLOCK = 1 << 20  # values


def replica_drift_check(strategy: tf.distribute.Strategy, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
    """Returns a function that compares the replicas, and raises a `DriftError` that names differing variables."""
    exchange = Exchange(strategy)
    if not exchange.networked:  # a one-device variable has no copies in a single process
        variables = {path: v for path, v in variables.items() if len(strategy.experimental_local_results(v)) > 1}

    @tf.function(autograph=False)
    def fingerprints() -> tf.Tensor:
        def replica() -> tf.Tensor:
            place = tf.distribute.get_replica_context().replica_id_in_sync_group
            row = tf.one_hot(place, exchange.replicas, on_value=1, off_value=0, dtype=tf.int64)
            own = fingerprints_of(variable.read_value for variable in variables.values())
            return exchange.sum(row[:, tf.newaxis] * own, phase="drift", what="fingerprints")

        return exchange.first(exchange.run(replica))

    def check() -> None:
        if exchange.replicas > 1 and variables:
            table = fingerprints().numpy()
            refuse_drift(table != table[0], "replica", "replica 0 does", list(variables))

    return check


def fingerprints_of(reads: Iterable[Callable[[], Any]]) -> tf.Tensor:
    """Calls the functions in `reads` one by one; returns the fingerprints of their values as an int64 vector."""
    own: list[tf.Tensor] = []
    for read in reads:
        with tf.control_dependencies(own[-1:]):
            own.append(fingerprint(read()))
    return tf.stack(own)


def refuse_drift(differs: npt.NDArray[np.bool_], what: str, expected: str, paths: Sequence[str]) -> None:
    """Raises a `DriftError` if the table `differs` has a true entry. Its rows are replicas or devices."""
    if not np.any(differs):
        return
    drifted = np.array(paths)[differs.any(axis=0)]
    strayed = listed([f"{what} {i}" for i in np.flatnonzero(differs.any(axis=1))], most=4, quote="")
    raise DriftError(
        f"{strayed} of {len(differs)} no longer hold what {expected}: "
        f"{listed(drifted, most=4)} ({len(drifted)} of {len(paths)} variables). Nothing was "
        "saved. Look for a step function that assigns a variable itself, or draws numbers without its `rng`; "
        "otherwise suspect a faulty device. The last checkpoint was saved before."
    )


def fingerprint(value: tf.Tensor) -> tf.Tensor:
    """Returns one int64 that depends on each bit of a tensor and on the position of the bit."""
    flat = tf.reshape(tf.cast(value, tf.int8) if value.dtype == tf.bool else value, [-1])
    blocks, rest = divmod(flat.shape.num_elements(), _BLOCK)

    def sum_of(first: tf.Tensor, size: int) -> tf.Tensor:
        places = tf.cast(first, tf.int64) + tf.range(size, dtype=tf.int64)
        # Sliced before the cast: GPUs slice int32 on the host.
        bits = tf.bitcast(tf.slice(flat, [first], [size]), _INTEGERS[flat.dtype.size])
        return tf.reduce_sum(tf.cast(bits, tf.int64) * (2 * places + 1))

    total = sum_of(tf.constant(blocks * _BLOCK), rest)
    if blocks:
        start = (tf.constant(0), total)
        body = lambda i, total: (i + 1, total + sum_of(i * _BLOCK, _BLOCK))  # noqa: E731
        total = tf.while_loop(lambda i, _: i < blocks, body, start, parallel_iterations=1)[1]
    return total
