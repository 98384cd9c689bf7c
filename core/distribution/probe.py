"""Tests the sum over replicas before training, with known values. With wrong sums, training would be meaningless."""

import threading

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.errors import ConfigurationError, PeerLostError


def check_exchange(strategy: tf.distribute.Strategy, *, deadline: float = 120.0) -> None:
    """Sums known values over the replicas. Raises an error for a wrong sum, or after `deadline` seconds."""
    exchange = Exchange(strategy)
    n = exchange.replicas
    outcome: list[tf.Tensor | Exception] = []

    @tf.function(autograph=False)
    def total() -> tf.Tensor:
        def replica() -> tf.Tensor:
            place = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            # Powers of two and positions, so that counting one replica twice and missing another shows.
            mine = tf.stack([tf.pow(2.0, place % 20.0), place + 1.0])
            return exchange.sum(mine, phase="start", what="probe")

        return tf.stack(strategy.experimental_local_results(exchange.run(replica)))

    def attempt() -> None:
        try:
            outcome.append(total())
        except Exception as error:  # any error means that it failed
            outcome.append(error)

    # In a thread: a collective that waits for a missing peer can't be interrupted.
    thread = threading.Thread(target=attempt, daemon=True, name="start-up all-reduce")
    thread.start()
    thread.join(deadline)
    if not outcome:
        raise PeerLostError(
            f"the {n} replicas didn't add up a first value within {deadline:g} s: a device or worker doesn't answer. "
            "Look at the others' logs and at the network between them, then start all of them again."
        )
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    expected = [sum(2.0 ** (i % 20) for i in range(n)), n * (n + 1) / 2]
    found = outcome[0].numpy().tolist()
    if any(row != expected for row in found):
        raise ConfigurationError(
            f"the {n} replicas added up {expected} to {found}: communication between these devices gives wrong values. "
            "Try other devices, or `NCCL_P2P_DISABLE=1` in the environment where they are GPUs."
        )
