"""Quantisers: the nearest vector, evenly spaced scalars, straight-through gradients, and the papers' loss."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from core.random import Rng
from models import ScalarQuantizer, VectorQuantizer, finite_scalars

X = np.random.RandomState(0).normal(size=[4, 5, 3]).astype(np.float32)


@pytest.fixture
def quantizer():
    made = VectorQuantizer(6, 3, commitment=0.5, rng=Rng.from_seed(0))
    assert np.abs(made.w).max() <= 1 / 6
    made.w.assign(np.random.RandomState(1).normal(size=[6, 3]))
    return made


def test_vector_becomes_the_nearest_of_the_code(quantizer):
    distances = np.linalg.norm(X[..., None, :] - quantizer.w.numpy(), axis=-1)
    made = quantizer(tf.constant(X))
    np.testing.assert_array_equal(made.codes, distances.argmin(-1))
    np.testing.assert_array_equal(made.vectors, quantizer.w.numpy()[distances.argmin(-1)])
    entries = quantizer(tf.constant(quantizer.w.numpy()))
    np.testing.assert_array_equal(entries.codes, np.arange(6))


def test_vectors_far_from_zero_or_from_the_code_have_their_nearest(quantizer):
    w = quantizer.w.numpy()
    near = quantizer(tf.constant(X)).codes
    quantizer.w.assign(w + 1000.0)
    np.testing.assert_array_equal(quantizer(tf.constant(X + 1000.0)).codes, near)
    far = quantizer(tf.constant(1e8 * X))
    np.testing.assert_array_equal(far.vectors, quantizer.w.numpy()[far.codes])
    np.testing.assert_array_equal(finite_scalars(tf.fill([1, 2], 1e8), [4, 3]).vectors, [[0.5, 1.0]])


def test_gradients_are_straight_through_and_the_loss_moves_both_sides(quantizer):
    x = tf.constant(X)
    entry = quantizer.w.numpy()[quantizer(x).codes]
    weights = np.random.RandomState(2).normal(size=X.shape)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        through = tf.reduce_sum(quantizer(x).vectors * weights)
        loss = quantizer.loss(x)
    np.testing.assert_allclose(loss, 1.5 * ((X - entry) ** 2).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(through, x), weights, rtol=1e-6)
    assert tape.gradient(through, quantizer.w) is None
    np.testing.assert_allclose(tape.gradient(loss, x), 0.5 * 2 * (X - entry), rtol=1e-5, atol=1e-6)
    moved = np.zeros([6, 3])
    np.add.at(moved, quantizer(x).codes.numpy(), 2 * (entry - X))
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(loss, quantizer.w)), moved, rtol=1e-5, atol=1e-5)


def test_finite_scalars_reach_each_code_once():
    levels = [8, 5, 2]
    line = np.linspace(-6, 6, 101)
    grid = np.array(list(itertools.product(line, line, [-5.0, 5.0])), np.float32)
    made = finite_scalars(tf.constant(grid), levels)
    found = np.unique(np.column_stack([made.codes, made.vectors]), axis=0)
    np.testing.assert_array_equal(found[:, 0], np.arange(80))
    code, values = found[:, 0].astype(int), found[:, 1:]
    digits = np.stack([code % 8, code // 8 % 5, code // 40], 1)
    np.testing.assert_allclose(values, (digits - [4, 2, 1]) / [4, 2, 1], atol=1e-6)
    np.testing.assert_allclose(finite_scalars(tf.zeros([1, 3]), [8, 5, 3]).vectors, [[0, 0, 0]], atol=1e-6)


def test_codes_have_the_entries_that_they_came_from(quantizer):
    for made in (quantizer, ScalarQuantizer([8, 5, 2])):
        found = made(tf.constant(3.0 * X))
        np.testing.assert_allclose(made.entries(found.codes), found.vectors, atol=1e-6)
    assert np.isnan(ScalarQuantizer([3, 3]).entries(tf.constant([-1, 0, 9]))[:, 0]).tolist() == [True, False, True]


def test_gradient_of_finite_scalars_is_that_of_the_bound():
    x = tf.constant(X[0, :, :1], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = finite_scalars(x, [5]).vectors
    half = 2.0 * 1.001
    np.testing.assert_allclose(tape.gradient(y, x), half * (1 - np.tanh(x) ** 2) / 2, rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_results_keep_the_dtype_and_a_row_that_is_not_finite_is_alone(quantizer, dtype):
    x = np.concatenate([X[0], np.full([1, 3], np.nan, np.float32)])
    for made in (quantizer(tf.cast(x, dtype)), finite_scalars(tf.cast(x, dtype), [8, 5, 3])):
        assert made.vectors.dtype == dtype
        finite = np.isfinite(tf.cast(made.vectors, tf.float32)).all(-1)
        np.testing.assert_array_equal(finite, [True] * 5 + [False])


def test_sizes_that_do_not_fit_are_refused(quantizer):
    with pytest.raises(ValueError, match="`levels` is \\[8, 1\\]; give at least 2"):
        finite_scalars(X, [8, 1])
    with pytest.raises(ValueError, match="give one for each value"):
        finite_scalars(X, [8, 5])
    with pytest.raises(ValueError, match="made with `size=3`"):
        quantizer(tf.zeros([2, 4]))
