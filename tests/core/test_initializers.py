"""Initializers have the moments, bounds and structure of their papers; JAX's are the peers."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core import initializers
from core.random import Rng

RNG = Rng.from_seed(4)


def test_named_forms_have_the_moments_and_bounds_of_jax() -> None:
    shape = (3, 3, 64, 96)
    names = ["glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform"]
    draw = jax.jit(lambda key: {name: getattr(jax.nn.initializers, name)()(key, shape) for name in names})
    for name, theirs in jax.device_get(draw(jax.random.key(0))).items():
        ours = getattr(initializers, name)()(RNG, shape).numpy()
        assert ours.shape == shape
        assert np.std(ours) == pytest.approx(np.std(theirs), rel=0.02), name
        assert np.mean(ours) == pytest.approx(0.0, abs=4 * float(np.std(ours)) / math.sqrt(ours.size)), name
        # Both are truncated, so the largest value identifies the distribution and its bound.
        assert np.max(np.abs(ours)) == pytest.approx(np.max(np.abs(theirs)), rel=0.01), name


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("distribution", ["truncated_normal", "normal", "uniform"])
def test_variance_scaling_has_the_variance_it_names(mode: str, distribution: str) -> None:
    values = initializers.variance_scaling(3.0, mode, distribution)(RNG, [5, 40, 160]).numpy()
    fan = {"fan_in": 5 * 40, "fan_out": 5 * 160, "fan_avg": 5 * 100}[mode]
    assert np.var(values) == pytest.approx(3.0 / fan, rel=0.03)


@pytest.mark.parametrize(
    "name",
    [
        *("zeros", "ones", "normal", "truncated_normal", "uniform", "variance_scaling", "orthogonal", "identity"),
        *("glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform"),
        *("constant", "delta_orthogonal"),
    ],
)
def test_whole_numbers_are_refused_by_name(name: str) -> None:
    initializer = getattr(initializers, name)(*([1.0] if name == "constant" else []))
    for dtype in (tf.int32, np.int64, tf.bool):
        with pytest.raises(ValueError, match=rf"`dtype` of `{name}` is (int|bool)\w*; parameters are floats"):
            initializer(RNG, [3, 3, 4, 4], dtype)
    for dtype in (tf.float64, tf.bfloat16):
        assert initializer(RNG, [3, 3, 4, 4], dtype).dtype == dtype


def test_orthogonal_is_so_to_the_digits_of_float64() -> None:
    w = initializers.orthogonal()(RNG, [6, 6], tf.float64).numpy()
    np.testing.assert_allclose(w.T @ w, np.eye(6), atol=1e-14)


def test_plain_distributions() -> None:
    draw = initializers.normal(0.5, mean=2.0)(RNG, [40000]).numpy()
    assert (draw.mean(), draw.std()) == (pytest.approx(2.0, abs=0.01), pytest.approx(0.5, rel=0.02))
    cut = initializers.truncated_normal(0.5, mean=2.0)(RNG, [40000]).numpy()
    assert 0.99 < np.max(np.abs(cut - 2.0)) <= 1.0
    flat = initializers.uniform(-1.0, 3.0)(RNG, [40000]).numpy()
    assert -1.0 <= flat.min() < -0.99
    assert 2.99 < flat.max() < 3.0
    np.testing.assert_array_equal(initializers.constant(7.0)(RNG, [2, 3]), np.full([2, 3], 7.0))
    np.testing.assert_array_equal(initializers.zeros()(RNG, [2]), [0.0, 0.0])
    np.testing.assert_array_equal(initializers.ones()(RNG, [2]), [1.0, 1.0])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.floats(0.1, 3.0))
def test_orthogonal_has_orthonormal_rows_or_columns(shape: list[int], gain: float) -> None:
    w = initializers.orthogonal(gain)(RNG, shape).numpy().reshape(-1, shape[-1]) / gain
    gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)


def test_orthogonal_is_uniform_over_rotations_and_reflections() -> None:
    draws = np.stack([initializers.orthogonal()(RNG.fold(i), [2, 2]).numpy() for i in range(200)])
    # QR's own signs would make one of these always negative.
    assert abs(np.mean(draws[:, 0, 0] > 0) - 0.5) < 0.15
    assert abs(np.mean(np.linalg.det(draws) > 0) - 0.5) < 0.15


@pytest.mark.parametrize("window", [(3,), (3, 3), (2, 4), (1, 3, 3)])
def test_delta_orthogonal_keeps_the_length_of_every_pixel(window: tuple[int, ...]) -> None:
    w = initializers.delta_orthogonal()(RNG, [*window, 4, 6])
    x = RNG.normal([2, *[5] * len(window), 4])
    y = tf.nn.convolution(x, w, padding="SAME")
    np.testing.assert_allclose(tf.norm(y, axis=-1), tf.norm(x, axis=-1), rtol=1e-5)


@pytest.mark.parametrize("window", [(), (3,), (3, 3), (2, 4), (3, 1, 5)])
def test_identity_changes_nothing(window: tuple[int, ...]) -> None:
    w = initializers.identity()(RNG, [*window, 4, 4])
    x = RNG.normal([2, *[6] * len(window), 4])
    np.testing.assert_array_equal(tf.nn.convolution(x, w, padding="SAME") if window else x @ w, x)


@pytest.mark.parametrize(
    "make",
    [
        initializers.normal,
        initializers.truncated_normal,
        initializers.uniform,
        initializers.he_normal,
        initializers.orthogonal,
        initializers.identity,
        initializers.zeros,
    ],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16])
def test_initializers_are_pure_and_make_the_dtype_they_are_asked_for(make: Callable[[], Any], dtype: tf.DType) -> None:
    first, again = make()(RNG, [3, 4], dtype), make()(RNG, [3, 4], dtype)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: initializers.variance_scaling(mode="fan_on"), r"`mode` is 'fan_on'; give one of 'fan_in'"),
        (lambda: initializers.variance_scaling(distribution="gauss"), r"`distribution` is 'gauss'; give one of"),
        (lambda: initializers.variance_scaling(-1.0), r"`scale` is -1.0; give zero or more"),
        (lambda: initializers.normal(-0.1), r"`stddev` is -0.1"),
        (lambda: initializers.uniform(1.0, 0.0), r"`low` is 1.0 and `high` is 0.0; swap them"),
        (lambda: initializers.he_normal()(RNG, [3]), r"`shape` of `fans` is \(3,\)"),
        (lambda: initializers.orthogonal()(RNG, [3]), r"`shape` of `orthogonal` is \(3,\)"),
        (lambda: initializers.delta_orthogonal()(RNG, [3, 5, 4]), r"5 input channels .* 4 outputs; use `orthogonal`"),
    ],
)
def test_bad_input_is_named(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


def test_shape_may_be_a_tensor_whose_value_is_known() -> None:
    names = ["zeros", "uniform", "normal", "truncated_normal", "he_normal", "orthogonal"]
    made = [initializers.constant(0.5), *(getattr(initializers, name)() for name in names)]
    in_graph = tf.function(lambda x: [initializer(RNG, tf.shape(x)) for initializer in made], autograph=False)
    for initializer, found in zip(made, in_graph(tf.zeros([3, 2])), strict=True):
        expected = initializer(RNG, [3, 2])
        np.testing.assert_array_equal(initializer(RNG, tf.constant([3, 2])), expected)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        of_any_rows = tf.function(lambda x, draw=initializer: draw(RNG, tf.shape(x)), autograph=False)
        with pytest.raises(ValueError, match=r"`shape` of `\w+` is a tensor whose value isn't known"):
            of_any_rows.get_concrete_function(tf.TensorSpec([None, 2]))
