"""Gradients that disagree give way as in the paper, and all copies of the network stay equal."""

import numpy as np
import pytest
import tensorflow as tf
from pcgrad import TwoLosses, pcgrad, projected

from core.data import digits
from core.optimizers import adam, sgd
from core.random import Rng
from core.testing import Run, assemble, assert_accumulation_invariant, assert_replica_invariant, on_virtual_cpus

batch = digits().gather(tf.range(16, dtype=tf.int64))


def make_task(rng=None, inner=None):
    return TwoLosses(rng=rng or Rng.from_seed(0), width=8, optimizer=pcgrad(inner or sgd(0.1)))


@pytest.mark.parametrize("degrees", [60, 90, 120, 180])
def test_a_gradient_loses_what_points_against_another(degrees):
    g, h = np.array([1.0, 0.0]), 2.0 * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
    product = min(g @ h, 0.0)
    expected = g - product / (h @ h) * h + h - product / (g @ g) * g
    np.testing.assert_allclose(projected(tf.constant(np.stack([g, h])), tf.constant(0)), expected, atol=1e-12)


def test_three_gradients_are_projected_in_random_orders():
    gradients = np.array([[1.0, 0.0, 0.1], [-0.5, 0.9, 0.0], [-0.5, -0.9, 0.2]])  # each against both others
    found = {tuple(projected(tf.constant(gradients), tf.constant(step)).numpy().round(9)) for step in range(50)}
    assert 1 < len(found) <= 8  # one for each order of the two others, in each of three rows
    sums = {tuple(sum(rows).round(9)) for rows in _all_orders(gradients)}
    assert found <= sums


def _all_orders(gradients):
    """Yields the projected rows for each order of the others, as the paper's algorithm computes them."""

    def after(i, order):
        g = gradients[i].copy()
        for j in order:
            g -= min(g @ gradients[j], 0.0) / (gradients[j] @ gradients[j]) * gradients[j]
        return g

    ways = [[after(i, order) for order in ((j, k), (k, j))] for i, j, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1))]
    for choice in np.ndindex(2, 2, 2):
        yield [way[c] for way, c in zip(ways, choice, strict=True)]


def test_a_step_is_that_of_both_gradients_at_one_network():
    assembly = assemble(make_task, on_virtual_cpus(1))
    run, task = Run(assembly, batch), assembly.task
    shared = task.one.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        digit, ink = (tf.reduce_mean(loss(batch, task.one)) for loss in (task.digit, task.ink))
    moved = projected(tf.stack([_flat(tape.gradient(x, shared)) for x in (digit, ink)]), tf.constant(0))
    head = tape.gradient(digit, task.heads.digit.w)
    before, w = _flat(shared), task.heads.digit.w.numpy()
    run.train(1)
    np.testing.assert_allclose(before - _flat(shared), 0.1 * moved, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(w - task.heads.digit.w, 0.1 * head, rtol=1e-4, atol=1e-7)


def _flat(tensors):
    return tf.concat([tf.reshape(x, [-1]) for x in tensors], 0)


def test_the_copies_stay_equal_to_the_bit():
    assembly = assemble(lambda rng: make_task(rng, adam(0.01)), on_virtual_cpus(2))
    Run(assembly, batch).train(5)
    for one, other in zip(assembly.task.one.variables, assembly.task.other.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_replicas_and_microbatches_train_it_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=3)
    assert_accumulation_invariant(make_task, batch, (1, 2), steps=3)
