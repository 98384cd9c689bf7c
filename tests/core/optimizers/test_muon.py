"""Muon's polynomials, its batches of equal shapes, kernels, and NorMuon's slots."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import Optimizer, constant, muon, sgd
from core.optimizers.orthogonalise import coefficients, orthogonalise

RANDOM = np.random.default_rng(5)


def matrix(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (3, 6, 4)])
def test_polar_express_converges_to_the_orthogonal_factor(shape):
    x = matrix(*shape)
    u, _, v = np.linalg.svd(x, full_matrices=False)
    found = orthogonalise(tf.constant(x), coefficients("polar_express", 9), 1e-8)
    np.testing.assert_allclose(found, u @ v, atol=1e-5)


def moved(rule, gradients, updates=2, dtype=tf.float32):
    variables = {path: tf.Variable(tf.zeros(g.shape, dtype)) for path, g in gradients.items()}
    optimizer = Optimizer(rule, variables)
    for i in range(updates):
        optimizer.apply({path: tf.constant(g * (i + 1.0), dtype) for path, g in gradients.items()})
    return {path: v.numpy() for path, v in variables.items()}, optimizer


@pytest.mark.parametrize("batches", [True, False])
def test_matrices_of_equal_shape_move_together_as_each_alone(monkeypatch, batches):
    monkeypatch.setattr("core.optimizers.orthogonalise.batches_pay", lambda: batches)
    gradients = {"a": matrix(4, 6), "b": matrix(4, 6), "c": matrix(6, 4), "d": 1e25 * matrix(4, 6)}
    together, _ = moved(muon(0.1, neuron_beta=0.9), gradients)
    for path, g in gradients.items():
        alone, _ = moved(muon(0.1, neuron_beta=0.9), {path: g})
        np.testing.assert_allclose(together[path], alone[path], rtol=0, atol=2e-6)


def test_kernel_moves_as_the_matrix_of_its_outputs():
    g = matrix(3, 2, 4, 5)
    kernel, optimizer = moved(muon(0.1, kernels=True, other=sgd(0.0)), {"k": g, "b": g[0, 0, 0]})
    flat, _ = moved(muon(0.1), {"k": g.reshape(-1, 5)})
    np.testing.assert_array_equal(kernel["k"].reshape(-1, 5), flat["k"])
    assert "muon/momentum/k" in optimizer.variables
    assert not kernel["b"].any()


def test_momentum_may_be_a_schedule():
    g = {"w": matrix(4, 3)}
    scheduled, constantly = (moved(muon(0.1, momentum=momentum), g)[0]["w"] for momentum in (constant(0.9), 0.9))
    np.testing.assert_allclose(scheduled, constantly, rtol=0, atol=1e-6)


def test_neurons_of_one_size_keep_the_update_and_others_become_even():
    g = matrix(6, 4)
    even, _ = moved(muon(1.0, neuron_beta=0.0), {"w": g}, updates=1)
    plain, _ = moved(muon(1.0), {"w": g}, updates=1)
    sizes = np.linalg.norm(even["w"], axis=0)
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(even["w"]), np.linalg.norm(plain["w"]), rtol=1e-5)


@pytest.mark.parametrize("slots", ["bfloat16", "int8"])
def test_slots_of_neurons_stay_wide_when_they_are_few(slots):
    g = {"w": matrix(64, 96)}
    narrow, optimizer = moved(muon(0.1, neuron_beta=0.9, slots=slots), g)
    wide, _ = moved(muon(0.1, neuron_beta=0.9), g)
    assert optimizer.variables["muon/v/w"].dtype == tf.float32
    assert optimizer.variables["muon/momentum/w"].dtype != tf.float32
    assert np.abs(narrow["w"] - wide["w"]).max() < 0.05 * np.abs(wide["w"]).max()
