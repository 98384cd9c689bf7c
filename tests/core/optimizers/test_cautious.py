"""Masks over an update: what they keep, what they refuse, and NaN."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import Optimizer, cautious, cautious_decay, chain, ema, groups, lookahead, sgd


def updated(rule, params, *gradients):
    w = tf.Variable(params)
    optimizer = Optimizer(rule, {"w": w})
    for gradient in gradients:
        optimizer.apply({"w": tf.constant(gradient)})
    return w.numpy()


def test_update_against_its_gradient_is_dropped_and_the_rest_is_scaled_up():
    before = updated(sgd(0.1, momentum=0.9), [0.0, 0.0], [1.0, 1.0])
    after = updated(cautious(sgd(0.1, momentum=0.9)), [0.0, 0.0], [1.0, 1.0], [-0.5, 1.0])
    np.testing.assert_allclose(after - before, [0.0, -0.1 * 1.9 / 0.5], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_mask_holds_for_gradients_of_any_size(size):
    np.testing.assert_allclose(updated(cautious(sgd(1.0)), [0.0, 0.0], [size, -size]), [-size, size])


def test_nan_is_not_masked():
    assert np.isnan(updated(cautious(sgd(0.1)), [1.0, 1.0], [float("nan"), 1.0])).tolist() == [True, False]


def test_decay_is_added_where_the_update_moves_towards_zero():
    moved = updated(cautious_decay(sgd(0.5), weight_decay=0.1), [1.0, -1.0, 1.0], [1.0, 1.0, 0.0])
    np.testing.assert_allclose(moved, [0.5 - 0.05, -1.5, 1.0 - 0.05], rtol=1e-6)


@pytest.mark.parametrize("mask", [cautious, cautious_decay])
def test_rule_with_weights_of_its_own_is_refused(mask):
    with pytest.raises(ValueError, match=f"`inner` of `{mask.__name__}` has `lookahead`, which keeps weights"):
        mask(lookahead(sgd(0.1)))
    Optimizer(lookahead(mask(sgd(0.1))), {"w": tf.Variable([1.0])})


def test_decay_over_rules_with_several_rates_is_refused():
    rule = cautious_decay(groups({"w": sgd(0.1)}, otherwise=sgd(0.2)))
    with pytest.raises(ValueError, match="`inner` of `cautious_decay` has 2 learning rates"):
        Optimizer(rule, {"w": tf.Variable([1.0]), "b": tf.Variable([1.0])})


def test_average_after_a_mask_sees_the_masked_weights():
    w = tf.Variable([1.0, -1.0])
    optimizer = Optimizer(chain(cautious_decay(cautious(sgd(0.5))), ema(0.0)), {"w": w})
    optimizer.apply({"w": tf.constant([1.0, 1.0])})
    np.testing.assert_array_equal(optimizer.shadow()["w"], w)
