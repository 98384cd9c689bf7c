"""Penalties on the slope of a critic, against critics of known slope."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core.losses.adversarial import gradient_penalty, r1, r2
from core.random import Rng

Array = np.ndarray


def images(seed: int, rows: int = 4) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(rows, 5, 5, 2)), tf.float32)


def flat(x: Any) -> Array:
    return np.asarray(x, np.float64).reshape(len(x), -1)


W = np.random.default_rng(3).normal(size=(5, 5, 2))
A = np.random.default_rng(4).normal(size=(50, 50)) / 10


def linear(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * tf.constant(W, x.dtype), axis=[1, 2, 3])


def quadratic(x: tf.Tensor) -> tf.Tensor:
    """Returns ½ xᵀAx, whose gradient is ½ (A + Aᵀ) x."""
    x = tf.reshape(x, [-1, 50])
    return 0.5 * tf.reduce_sum(x * tf.matmul(x, tf.constant(A.T, x.dtype)), axis=1)


def quadratic_slope(x: Any) -> Array:
    return flat(x) @ (A + A.T) / 2


def test_penalties_of_a_linear_critic_are_those_of_its_weights() -> None:
    norm = np.linalg.norm(W)
    np.testing.assert_allclose(r1(linear, images(0)), np.full(4, norm**2), rtol=1e-6)
    np.testing.assert_allclose(r2(linear, images(1)), np.full(4, norm**2), rtol=1e-6)
    penalty = gradient_penalty(linear, images(0), images(1), Rng.from_seed(0))
    np.testing.assert_allclose(penalty, np.full(4, (norm - 1) ** 2), rtol=1e-6)


def test_penalties_take_lists() -> None:
    real, fake, rng = images(0), images(1), Rng.from_seed(0)
    lists = np.asarray(real).tolist(), np.asarray(fake).tolist()
    np.testing.assert_array_equal(r1(linear, lists[0]), r1(linear, real))
    np.testing.assert_array_equal(r2(linear, lists[1]), r2(linear, fake))
    np.testing.assert_array_equal(gradient_penalty(linear, *lists, rng), gradient_penalty(linear, real, fake, rng))


def test_penalties_of_a_quadratic_critic_are_those_of_its_slope_where_they_are_taken() -> None:
    real, fake, rng = images(0), images(1), Rng.from_seed(5)
    np.testing.assert_allclose(r1(quadratic, real), (quadratic_slope(real) ** 2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(r2(quadratic, fake), (quadratic_slope(fake) ** 2).sum(1), rtol=1e-5)
    mix = flat(rng.rows.uniform(4))
    assert len(np.unique(mix)) == 4  # one for each row
    between = mix * flat(real) + (1 - mix) * flat(fake)
    expected = (np.linalg.norm(quadratic_slope(between), axis=1) - 1) ** 2
    np.testing.assert_allclose(gradient_penalty(quadratic, real, fake, rng), expected, rtol=1e-5)


def test_a_critic_of_patches_is_judged_by_its_mean_logit() -> None:
    def patches(x: tf.Tensor) -> tf.Tensor:
        return tf.stack([linear(x), 3.0 * linear(x), 2.0 * linear(x), tf.zeros_like(linear(x))], axis=1)[:, :, None]

    np.testing.assert_allclose(r1(patches, images(0)), 1.5**2 * r1(linear, images(0)), rtol=1e-5)


def test_rows_of_a_penalty_are_the_same_in_every_share_of_the_batch() -> None:
    real, fake, rng = images(0), images(1), Rng.from_seed(5)
    whole = gradient_penalty(quadratic, real, fake, rng)
    for first in (0, 2):
        share = rng._replace(first_row=first, num_rows=2)
        part = gradient_penalty(quadratic, real[first : first + 2], fake[first : first + 2], share)
        np.testing.assert_allclose(part, whole[first : first + 2], rtol=1e-6)


class Convolutional(tf.Module):
    """A small critic with a smooth activation, and slopes of every order."""

    def __init__(self, dtype: tf.DType = tf.float32):
        super().__init__()
        rng = np.random.default_rng(0)
        self.w = tf.Variable(rng.normal(size=(3, 3, 2, 3)) / 4, dtype=dtype)
        self.v = tf.Variable(rng.normal(size=(3, 3, 3, 1)) / 4, dtype=dtype)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        hidden = tf.tanh(tf.nn.conv2d(x, tf.cast(self.w, x.dtype), 1, "VALID"))
        return tf.nn.conv2d(hidden, tf.cast(self.v, x.dtype), 1, "SAME")[..., 0]


PENALTIES: dict[str, Callable[..., tf.Tensor]] = {
    "gradient_penalty": lambda critic, x, y: gradient_penalty(critic, x, y, Rng.from_seed(7)),
    "r1": lambda critic, x, y: r1(critic, x),
    "r2": lambda critic, x, y: r2(critic, y),
}
every_penalty = pytest.mark.parametrize("penalty", list(PENALTIES.values()), ids=list(PENALTIES))


def trained(penalty: Callable[..., tf.Tensor], critic: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    """Returns the penalties of the rows, and the critic's gradients from them."""
    with tf.GradientTape() as tape:
        values = penalty(critic, x, y)
    return [values, *tape.gradient(values, critic.trainable_variables)]


@every_penalty
def test_the_gradient_by_the_critics_weights_is_that_of_finite_differences(penalty) -> None:
    critic = Convolutional(tf.float64)
    x, y = (tf.cast(images(i), tf.float64) for i in range(2))
    _, *gradients = trained(penalty, critic, x, y)
    for variable, gradient in zip(critic.trainable_variables, gradients, strict=True):
        start = variable.numpy()
        along = np.random.default_rng(2).normal(size=start.shape)
        sides = []
        for step in (1e-5, -1e-5):
            variable.assign(start + step * along)
            sides.append(float(tf.reduce_sum(penalty(critic, x, y))))
        variable.assign(start)
        np.testing.assert_allclose((gradient.numpy() * along).sum(), (sides[0] - sides[1]) / 2e-5, rtol=1e-6)


@pytest.mark.long
def test_penalties_and_their_gradients_are_the_same_eagerly_in_a_graph_and_under_xla() -> None:
    critic, x, y = Convolutional(), images(0), images(1)

    def all_penalties(x: tf.Tensor, y: tf.Tensor) -> dict[str, list[tf.Tensor]]:
        return {name: trained(penalty, critic, x, y) for name, penalty in PENALTIES.items()}

    eager, spec = all_penalties(x, y), tf.TensorSpec([None, 5, 5, 2], tf.float32)
    graph = tf.function(all_penalties, input_signature=[spec, spec], autograph=False)
    compiled = tf.function(all_penalties, jit_compile=True, autograph=False)
    for call in (graph, compiled):
        for name, found in call(x, y).items():
            for a, b in zip(found, eager[name], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
    critic.v.assign(tf.zeros_like(critic.v))  # a flat critic has a finite gradient
    for call in (all_penalties, compiled):
        for name, (values, *gradients) in call(x, y).items():
            np.testing.assert_array_equal(values, np.full(4, 1.0 if name == "gradient_penalty" else 0.0))
            assert all(np.all(np.isfinite(g)) for g in gradients), name


@every_penalty
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_a_critic_computes_in_the_dtype_of_its_images_and_norms_are_float32(penalty, dtype) -> None:
    seen = []

    def critic(x: tf.Tensor) -> tf.Tensor:
        seen.append(x.dtype)
        return 200.0 * linear(x)  # a squared norm beyond float16

    x, y = (tf.cast(images(i), dtype) for i in range(2))
    values = penalty(critic, x, y)
    norm = 200 * np.linalg.norm(W)
    expected = (norm - 1) ** 2 if penalty is PENALTIES["gradient_penalty"] else norm**2
    assert values.dtype == tf.float32
    assert set(seen) == {dtype}
    np.testing.assert_allclose(values, np.full(4, expected), rtol=0.02)
