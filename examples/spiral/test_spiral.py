"""The step, without a trainer."""

import tensorflow as tf
from spiral import SpiralTask, spirals

from core.optimizers import adamw
from core.random import Rng
from core.testing import assert_overfits, assert_replica_invariant, assert_step_function, assert_updates_only

batch = spirals(count=16).gather(tf.range(16, dtype=tf.int64))


def make_task(rng=None):
    return SpiralTask(rng=rng or Rng.from_seed(0), optimizer=adamw(1e-2))


def test_loss_is_per_example():
    loss = assert_step_function(make_task().loss, batch)
    assert loss.per_example.shape == [16]


def test_update_trains_the_network_and_nothing_else():
    task = make_task()
    assert_updates_only(task, "net", task.net, batch)


def test_it_can_learn():
    assert_overfits(make_task(), batch, steps=200)


def test_two_replicas_train_it_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=5)
