"""The target is the network's average, on one replica and on two."""

import numpy as np
import tensorflow as tf
from byol import Byol, distance, spread, views

from core.data import digits
from core.optimizers import averaged, chain, ema, sgd
from core.random import Rng
from core.task import Statistics
from core.testing import Run, assemble, assert_replica_invariant, on_virtual_cpus

batch = digits().gather(tf.range(32, dtype=tf.int64))


def make_task(rng=None):
    return Byol(rng=rng or Rng.from_seed(0), channels=(16, 16), size=16, optimizer=chain(sgd(0.1), ema(0.5)))


def test_distances_are_those_of_unit_vectors():
    one, other = np.random.RandomState(0).randn(2, 5, 4).astype("float32")
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other)]
    np.testing.assert_allclose(distance(one, other), ((units[0] - units[1]) ** 2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(tf.reduce_mean(spread(one)), units[0].var(0).sum(), rtol=1e-5)
    np.testing.assert_allclose(spread(np.ones([5, 4], "float32")), 0.0, atol=1e-6)


def test_the_prediction_of_a_view_is_compared_with_the_average_of_the_other():
    assembly = assemble(make_task, on_virtual_cpus(1))
    Run(assembly, batch).train(3)
    task = assembly.task
    rng, image = Rng.from_seed(1), batch["image"]
    target = averaged(task.net)
    assert np.abs(target(image) - task.net(image)).max() > 1e-4
    one, other = (views(image, rng)[i] for i in (0, 1))
    both = tf.concat([one, other], 0)
    predicted = task.prediction(task.net(both, Statistics()), Statistics())
    expected = distance(predicted[:32], target(other)) + distance(predicted[32:], target(one))
    np.testing.assert_allclose(task.loss(batch, rng).per_example, expected, rtol=1e-4)


def test_two_replicas_train_it_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=3)
