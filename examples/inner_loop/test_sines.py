"""The step with its inner loop, without a trainer."""

import numpy as np
import tensorflow as tf
from sines import Maml, error, sines

from core.optimizers import sgd
from core.random import Rng
from core.testing import Run, assemble, assert_replica_invariant, on_virtual_cpus

batch = sines(count=16).gather(tf.range(16, dtype=tf.int64))


def make_task(rng=None, **settings):
    return Maml(rng=rng or Rng.from_seed(0), width=8, optimizer=sgd(0.1), **settings)


def test_a_row_is_adapted_by_plain_gradient_descent():
    task = make_task(inner_steps=1)
    before = {path: w.numpy() for path, w in task.net.parameters().items()}
    with tf.GradientTape() as tape:
        loss = error(task.net, batch["x"][0], batch["y"][0])
    gradients = tape.gradient(loss, task.net.parameters())
    adapted = task.adapted(batch["x"][0], batch["y"][0])
    np.testing.assert_allclose(adapted.first.w, before["first/w"] - 0.1 * gradients["first/w"], rtol=1e-6)
    for path, w in task.net.parameters().items():  # the variables themselves don't change
        np.testing.assert_array_equal(w, before[path])


def test_adaptation_helps_once_it_was_learnt():
    run = Run(assemble(make_task, on_virtual_cpus(1)), sines(count=256).gather(tf.range(256, dtype=tf.int64)))
    figures = run.train(200).figures
    assert figures["net/loss"][-1] < 0.6 * figures["net/unadapted"][-1]
    assert figures["net/loss"][-1] < 0.6 * figures["net/loss"][0]


def test_two_replicas_train_it_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=3)
