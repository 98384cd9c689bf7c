"""Sums, moments and affine maps per channel equal NumPy's in float64, for every shape, and so do their derivatives."""

import numpy as np
import pytest
import tensorflow as tf

from core.layers.channels import channel_affine, channel_moments, channel_sums

SHAPES = {
    "vector": [3],
    "rows": [7, 3],
    "sequence": [2, 5, 3],
    "image": [2, 3, 5, 4],
    "no rows": [0, 2, 3],
    "no width": [2, 0, 3],
}


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sums_are_those_of_each_channel(shape: list[int], merge: bool, known: bool):
    spec = tf.TensorSpec(shape if known else [*[None] * (len(shape) - 1), shape[-1]], tf.float64)
    x = values(*shape)
    total = tf.function(lambda x: channel_sums(x, merge=merge), input_signature=[spec])(tf.constant(x))
    np.testing.assert_allclose(total, x.reshape(-1, shape[-1]).sum(0) if len(shape) > 1 else x, rtol=1e-12)


@pytest.mark.parametrize("shape", [[32, 56, 56, 2], [100_352, 2], [100_352, 1, 2]])
def test_a_sum_over_many_equal_rows_keeps_its_digits(shape: list[int]):
    total = channel_sums(tf.fill(shape, 0.1), merge=True)
    np.testing.assert_allclose(total, [100_352 * 0.1] * 2, rtol=5e-6)  # 5e-4 if rows stay single


@pytest.mark.parametrize("merge", [True, False])
def test_values_and_first_and_second_derivatives_are_those_of_the_plain_formula(merge: bool):
    x, factor, shift, direction = (
        tf.constant(v) for v in (values(2, 3, 2), values(2, seed=1), values(2, seed=2), values(2, 3, 2, seed=3))
    )

    def own(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        mean, variance = channel_moments(x, merge=merge)
        return channel_affine(x - mean, factor * tf.math.rsqrt(variance + 0.1), shift, merge=merge)

    def plain(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        centred = x - tf.reduce_mean(x, [0, 1])
        return centred * factor * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), [0, 1]) + 0.1) + shift

    def derivatives(function) -> list[tf.Tensor]:
        arguments = [x, factor, shift]
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            with tf.GradientTape() as inner:
                inner.watch(arguments)
                y = tf.reduce_sum(tf.tanh(function(*arguments)) * direction)
            first = inner.gradient(y, arguments)
            length = sum(tf.reduce_sum(tf.square(g)) for g in first)
        return [function(*arguments), *first, *outer.gradient(length, arguments)]

    for mine, expected in zip(derivatives(own), derivatives(plain), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-9, atol=1e-12)
