"""Optimizers with gradients whose squares leave the range of float32."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import Optimizer, Transform, chain, norms, sgd

GRADIENTS = np.random.default_rng(7).normal(size=(6, 5)).astype(np.float32)


def directions(transform: Transform, scale: float, compiled: bool) -> np.ndarray:
    """Returns the first update of a matrix and a vector, for gradients of one scale."""
    params = {"w": tf.Variable(tf.reshape(GRADIENTS[:2], [2, 5])), "b": tf.Variable(GRADIENTS[2])}
    gradients = {"w": scale * tf.constant(GRADIENTS[3:5]), "b": scale * tf.constant(GRADIENTS[5])}
    optimizer, before = Optimizer(transform, params), {path: v.numpy() for path, v in params.items()}
    apply = functools.partial(optimizer.apply, gradients, fused=not compiled)
    (tf.function(apply, autograph=False, jit_compile=True) if compiled else apply)()
    return np.concatenate([(v.numpy() - before[path]).ravel() for path, v in params.items()])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("transform", "scales"),
    [
        (chain(optimizers.clip_by_global_norm(0.1), sgd(1.0)), (1e18, 1e20, 1e30)),
        (chain(optimizers.clip_by_norm(0.1), sgd(1.0)), (1e18, 1e20, 1e30)),
        (chain(optimizers.adaptive_clip(0.1), sgd(1.0)), (1e18, 1e20, 1e30)),
        (chain(optimizers.clip_by_global_norm(0.1), optimizers.adamw(1.0)), (1e18, 1e20, 1e30)),
        (optimizers.lars(100.0), (1e-30, 1e-20, 1e18, 1e20, 1e30)),
        (optimizers.sam(sgd(1.0), rho=0.5), (1e-30, 1e-20, 1e18, 1e20, 1e30)),
        (optimizers.muon(1.0, other=sgd(0.0)), (1e18, 1e20, 1e30)),
    ],
    ids=["global norm", "norm", "adaptive", "before a rule", "lars", "sam", "muon"],
)
def test_norms_of_any_size_give_the_direction_of_norms_of_one(
    transform: Transform, scales: tuple[float, ...], compiled: bool
) -> None:
    expected = directions(transform, 1.0, compiled)
    assert np.abs(expected).max() > 0.01
    for scale in scales[1:2] if compiled else scales:
        np.testing.assert_allclose(directions(transform, scale, compiled), expected, rtol=0, atol=1e-5)


R = 0.5**0.5
LARGEST = [
    (chain(optimizers.clip_by_global_norm(1.0), sgd(1.0)), R),
    (chain(optimizers.clip_by_global_norm(1e-12), sgd(1e12)), R),
    (chain(optimizers.clip_by_norm(1e-3), sgd(1e3)), R),
    (chain(optimizers.adaptive_clip(0.01), sgd(1e2)), 1.0),
    (optimizers.sam(sgd(1.0), rho=0.5), -0.5 * R),
    (optimizers.lars(1e3, trust_coefficient=1e-3), 1.0),
]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("transform", "move"), LARGEST, ids=["global norm", "small limit", "norm", "adaptive", "sam", "lars"]
)
def test_largest_gradients_move_as_others_do(transform: Transform, move: float, compiled: bool) -> None:
    w = tf.Variable([1.0, 1.0])
    optimizer = Optimizer(transform, {"w": w})
    apply = functools.partial(optimizer.apply, fused=not compiled)
    call = tf.function(apply, autograph=False, jit_compile=True) if compiled else apply
    for size in (1e37, 1e38, 3e38):
        w.assign([1.0, 1.0])
        optimizer.restart()
        call({"w": tf.constant([size, -size])})
        np.testing.assert_allclose(w.numpy() - 1.0, [-move, move], rtol=1e-5)


@pytest.mark.parametrize("clip", [optimizers.clip_by_global_norm, optimizers.clip_by_norm])
def test_clipping_keeps_the_bits_of_short_gradients_and_shows_nan(clip: Any) -> None:
    rule = clip(1.0)
    for gradient in ([0.1, -0.3], [0.0, 0.0], [1e-19, 3e-30]):
        updates, _ = rule.update({"w": tf.constant(gradient)}, {}, {"w": tf.ones(2)}, step=tf.constant(0))
        np.testing.assert_array_equal(updates["w"], tf.constant(gradient))
    updates, _ = clip(1e-20).update({"w": tf.constant([3e-20, 4e-20])}, {}, {"w": tf.ones(2)}, step=tf.constant(0))
    np.testing.assert_allclose(updates["w"], [6e-21, 8e-21], rtol=1e-6)
    updates, _ = rule.update({"w": tf.constant([np.nan, 1.0])}, {}, {"w": tf.ones(2)}, step=tf.constant(0))
    assert np.isnan(updates["w"]).all()


def test_norm_is_measured_again_only_for_a_tensor_whose_squares_are_lost() -> None:
    seen: list[tuple[int, ...]] = []

    def norm_of(x: tf.Tensor) -> tf.Tensor:
        seen.append(tuple(x.shape))
        return tf.norm(x)

    found = norms.measured([tf.ones([3]), tf.zeros([2]), tf.fill([4], 1e30)], norm_of)
    assert seen == [(3,), (2,), (4,), (2,), (4,)]
    assert [float(norm) for _, norm, _ in found] == pytest.approx([3**0.5, 0.0, 2.0])
    assert [float(unit) for _, _, unit in found] == [1.0, 1.0, pytest.approx(1e30)]


@pytest.mark.parametrize("beta_2", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("name", ["adam", "adamw", "nadam", "lamb"])
@pytest.mark.parametrize("fused", [True, False])
def test_adam_shows_nan_after_an_infinite_square(fused: bool, name: str, beta_2: float) -> None:
    w = tf.Variable([1.0, 1.0])
    optimizer = Optimizer(getattr(optimizers, name)(0.1, beta_2=beta_2), {"w": w})
    for gradient in ([1e20, 1.0], [1.0, 1.0]):
        optimizer.apply({"w": tf.constant(gradient)}, fused=fused)
    assert np.isnan(w.numpy()).tolist() == [True, False]
