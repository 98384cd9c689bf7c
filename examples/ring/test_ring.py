"""Both updates, without a trainer."""

import tensorflow as tf
from ring import RingGan, ring

from core.optimizers import adam
from core.random import Rng
from core.testing import assert_replica_invariant, assert_updates_only

batch = ring(count=16).gather(tf.range(16, dtype=tf.int64))


def make_task(rng=None):
    optimizer = adam(1e-3, epsilon=1e-3)
    return RingGan(rng=rng or Rng.from_seed(0), width=8, g_optimizer=optimizer, d_optimizer=optimizer)


def test_each_update_trains_its_network_alone():
    task = make_task()
    assert_updates_only(task, "d", task.d, batch)
    assert_updates_only(task, "g", task.g, batch)


def test_two_replicas_train_both_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=5)
