"""SOAP with a basis on both sides, its first update, and NaN."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import Optimizer, soap
from tests.conformance.paper_peers import numpy_soap

RANDOM = np.random.default_rng(11)


def test_both_sides_of_a_matrix_agree_with_the_peer():
    start, gradients = RANDOM.normal(size=(5, 5)), RANDOM.normal(size=(9, 5, 5))
    w, peer = tf.Variable(tf.cast(start, tf.float64)), numpy_soap(0.1, 0.95, 1e-8, 2, 10_000, 0.01)
    optimizer, params = Optimizer(soap(0.1, basis_every=2), {"w": w}), {"w": start}
    state = peer.init(params)
    for g in gradients:
        optimizer.apply({"w": tf.constant(g)})
        params, state = peer.step({"w": g}, state, params, None)
        np.testing.assert_allclose(w, params["w"], rtol=1e-5, atol=1e-6)


def test_first_update_moves_no_weight_and_shows_nan():
    w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    optimizer = Optimizer(soap(0.1), {"w": w})
    optimizer.apply({"w": tf.ones([2, 2])})
    np.testing.assert_array_equal(w, [[1.0, 2.0], [3.0, 4.0]])
    optimizer.restart()
    optimizer.apply({"w": tf.fill([2, 2], float("nan"))})
    assert np.isnan(w.numpy()).all()


@pytest.mark.parametrize("shape", [[], [4], [1, 1], [3, 9]])
def test_axes_without_a_basis_have_no_slots(shape):
    optimizer = Optimizer(soap(0.1, max_size=3), {"w": tf.Variable(tf.ones(shape))})
    expected = {"step", "soap/m/w", "soap/v/w"} | ({"soap/gram_0/w", "soap/basis_0/w"} if shape == [3, 9] else set())
    assert set(optimizer.variables) == expected
