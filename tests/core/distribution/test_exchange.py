"""Values leave the replicas in few all-reduces, which the collective log lists."""

import pytest
import tensorflow as tf

from core.distribution import Collective, Exchange, Ledger
from core.testing import on_virtual_cpus

LARGE = 1 << 14


def reduced(replicas):
    """Returns sums over replicas of a function of their number, and the exchange."""
    exchange = Exchange(on_virtual_cpus(replicas))

    def replica():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group + 1
        return {
            "loss": tf.cast(number, tf.float32),
            "states": (tf.fill([2, 3], tf.cast(number, tf.float32)), tf.fill([4], tf.cast(number, tf.int64))),
            "large": tf.fill([LARGE], tf.cast(number, tf.float32)),
        }

    @tf.function(autograph=False)
    def total():
        return exchange.reduce(exchange.run(replica), phase="evaluate", what="figures")

    return total(), exchange


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_each_type_is_one_sum_and_a_large_value_another(replicas):
    found, exchange = reduced(replicas)
    expected = replicas * (replicas + 1) // 2
    assert [x.shape for x in (found["loss"], *found["states"], found["large"])] == [[], [2, 3], [4], [LARGE]]
    assert {float(value) for x in tf.nest.flatten(found) for value in tf.reshape(x, [-1])[:8]} == {expected}
    entries = [(entry.phase, entry.what, entry.dtype, entry.bytes) for entry in exchange.ledger.collectives]
    each = [("float32", 4 * LARGE), ("float32", 4 * 7), ("int64", 8 * 4)] if replicas > 1 else []
    assert sorted(entries) == sorted(("evaluate", "figures", *message) for message in each)


def test_a_later_worker_lists_its_own_ends_and_what_none_notes():
    ledger = Ledger()
    ledger.add(Collective("d", "values", "float32", 4))  # moved by the host, not by a replica
    for replica in (2, 3):
        ledger.add(Collective("d", "gradients", "float32", 8, replica=replica))
    assert [(entry.what, entry.bytes, entry.replica) for entry in ledger.collectives] == [
        ("values", 4, None),
        ("gradients", 8, 2),
    ]
