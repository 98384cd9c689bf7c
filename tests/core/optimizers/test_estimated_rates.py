"""Optimizers that estimate their own learning rate, and L-BFGS: reported rates, groups, warm-ups, and L-BFGS's peer."""

import functools

import gin
import numpy as np
import optax
import pytest
import tensorflow as tf

from core.optimizers import (
    Optimizer,
    chain,
    dadapt_adamw,
    dog,
    ema,
    groups,
    last_rates,
    lbfgs,
    linear,
    mechanic,
    optimistic,
    prodigy,
    rprop,
    sgd,
)

GAMMA = linear(1.0, 0.0, steps=16)
CURVATURE = np.array([1.0, 3.0, 10.0, 30.0], np.float32)


@functools.cache
def traced(optimizer):
    w = optimizer.parameters["w"]
    return tf.function(lambda: optimizer.apply({"w": CURVATURE * (w - 1.0)}), autograph=False)


def descend(optimizer, updates):
    """Takes updates on ½ Σ c (w - 1)², c = 1, 3, 10, 30, in the gradient's own graph; returns the loss."""
    w = optimizer.parameters["w"]
    for _ in range(updates):
        traced(optimizer)()
    return float(tf.reduce_sum(CURVATURE * tf.square(w - 1.0)) / 2.0)


def bowl(transform):
    return Optimizer(transform, {"w": tf.Variable([3.0, -1.0, 2.0, 0.0])})


@pytest.mark.parametrize("transform", [dog(GAMMA, initial_distance=0.1), mechanic(sgd(GAMMA), initial_scale=0.01)])
def test_reported_rate_is_that_by_which_the_gradient_moved_the_weights(transform):
    optimizer = bowl(transform)
    read = last_rates(optimizer)
    assert len(read()) == 1
    for i in range(3):
        optimizer.slots[next(slot for slot in optimizer.slots if slot.endswith("/start"))]["w"].assign(
            optimizer.parameters["w"]
        )  # mechanic rescales the way from its start too
        before = optimizer.parameters["w"].numpy()
        optimizer.apply({"w": tf.fill([4], 2.0 + i)})
        by = (before - optimizer.parameters["w"].numpy()) / (2.0 + i)
        np.testing.assert_allclose(by, read()[""], rtol=1e-4)


@pytest.mark.parametrize(("name", "rule"), [("prodigy", prodigy), ("dadapt_adamw", dadapt_adamw)])
def test_reported_rate_is_the_estimate_times_the_schedule(name, rule):
    optimizer = bowl(rule(GAMMA, d_0=0.01))
    read, seen = last_rates(optimizer), []
    for i in range(8):
        descend(optimizer, 1)
        seen.append(read()[""])
        assert seen[-1] == float(GAMMA(i) * optimizer.slots[f"{name}/d"][""])
    assert seen[0] == pytest.approx(0.01)
    assert seen[-1] > seen[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "transform", [prodigy(), dadapt_adamw(), dog(), mechanic(sgd(1.0))], ids=["prodigy", "dadapt", "dog", "mechanic"]
)
def test_rule_without_a_rate_finds_one_from_a_millionth(transform):
    optimizer = bowl(transform)
    assert descend(optimizer, 400) < 0.5 * 0.5 * np.sum(CURVATURE * [4.0, 4.0, 1.0, 1.0])


@pytest.mark.parametrize("rule", [prodigy, dadapt_adamw, dog])
def test_warm_up_from_zero_is_finite(rule):
    """The first update has no weight in the estimate, whose denominator is then zero."""
    optimizer = bowl(rule(linear(0.0, 1.0, steps=4)))
    descend(optimizer, 6)
    assert all(np.isfinite(v.numpy()).all() for v in [*optimizer.variables.values(), *optimizer.parameters.values()])


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        lambda: prodigy(d_0=0.01),
        lambda: dadapt_adamw(d_0=0.01),
        lambda: dog(initial_distance=0.01),
        lambda: mechanic(sgd(0.1), initial_scale=0.01),
        lambda: lbfgs(0.1, memory_size=2),
    ],
    ids=["prodigy", "dadapt_adamw", "dog", "mechanic", "lbfgs"],
)
def test_sums_of_a_group_run_over_that_group_alone(make):
    def moved(transform, paths):
        params = {path: tf.Variable(x) for path, x in (("a", [1.0, 2.0]), ("b", [30.0])) if path in paths}
        optimizer = Optimizer(transform, params)
        for _ in range(12):
            optimizer.apply({path: (2.0 if path == "a" else -1.0) * v for path, v in params.items()})
        return {path: v.numpy() for path, v in params.items()}

    both = moved(groups({"a": make(), "b": make()}), "ab")
    for path in "ab":
        np.testing.assert_array_equal(both[path], moved(make(), path)[path])
    assert not np.array_equal(both["a"], moved(make(), "ab")["a"])


def test_mechanic_refuses_an_average_within():
    with pytest.raises(ValueError, match=r"`inner` has `ema`.*`chain\(mechanic\(adam\(1.0\)\), ema\(\)\)`"):
        mechanic(chain(sgd(1.0), ema()))


def test_step_sizes_of_rprop_are_a_range():
    with pytest.raises(ValueError, match=r"`min_step_size` is 1\.0, but `max_step_size`"):
        rprop(min_step_size=1.0, max_step_size=0.5)


@pytest.mark.long
def test_optimistic_descent_ends_a_bilinear_game_in_which_plain_descent_diverges():
    def distance(transform):
        x, y = tf.Variable(1.0), tf.Variable(1.0)
        players = Optimizer(transform, {"x": x}), Optimizer(transform, {"y": y})
        for _ in range(200):
            gradients = {"x": tf.identity(y)}, {"y": -tf.identity(x)}  # of min over x, max over y of x y
            for player, gradient in zip(players, gradients, strict=True):
                player.apply(gradient)
        return float(tf.sqrt(x * x + y * y))

    assert distance(sgd(0.1)) > 2.0
    assert distance(chain(sgd(0.1), optimistic())) < 0.6


@pytest.mark.long
def test_lbfgs_on_a_bowl_is_that_of_optax():
    """All pairs have positive curvature here, and both store them."""
    optimizer = bowl(lbfgs(0.5, memory_size=3))
    peer = optax.scale_by_lbfgs(memory_size=3)
    params = optimizer.parameters["w"].numpy()
    state, losses = peer.init(params), []
    for _ in range(7):
        losses.append(descend(optimizer, 1))
        updates, state = peer.update(CURVATURE * (params - 1.0), state, params)
        params = params - 0.5 * np.asarray(updates)
        np.testing.assert_allclose(optimizer.parameters["w"], params, rtol=1e-4, atol=1e-5)
    assert descend(optimizer, 20) < 1e-6 * losses[0]


def test_lbfgs_drops_a_pair_of_negative_curvature_and_still_descends():
    w = tf.Variable([1.0, 1.0])
    optimizer = Optimizer(lbfgs(0.1), {"w": w})
    for _ in range(5):
        gradient = -2.0 * w  # of -‖w‖²: each pair has negative curvature
        before = w.numpy()
        optimizer.apply({"w": gradient})
        assert np.sum((w.numpy() - before) * gradient.numpy()) < 0.0
    assert not optimizer.slots["lbfgs/s"][""].numpy().any()


def test_gin_tunes_the_rate_of_another_optimizer():
    gin.parse_config("mechanic.inner = @adam()\nadam.learning_rate = 1.0\nmechanic.num_betas = 3")
    optimizer = bowl(gin.get_configurable("mechanic")())
    assert optimizer.variables["mechanic/scales"].shape == [3]
    assert "mechanic/adam/m/w" in optimizer.variables
