"""Optimizers outside the table: non-finite gradients, noise, averages, missing losses; squares under XLA."""

import gin
import jax
import numpy as np
import optax
import pytest
import tensorflow as tf

from core.optimizers import (
    Optimizer,
    Transform,
    adam,
    adamw,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    dadapt_adamw,
    dog,
    ema,
    gradient_noise,
    lamb,
    lars,
    lbfgs,
    mechanic,
    piecewise_constant,
    polyak,
    prodigy,
    reduce_on_plateau,
    sam,
    sgd,
    shampoo,
)
from core.optimizers.norms import half_of_squares
from core.tracing import in_xla
from tests.conformance.in_numpy import in_numpy


def test_apply_if_finite_gives_in_after_as_many_errors_as_optax() -> None:
    gradients = [1.0, np.nan, 2.0, np.inf, np.nan, 3.0, np.nan, np.nan, np.nan, 1.0]
    w, peer = tf.Variable([1.0]), optax.apply_if_finite(optax.adam(0.1, b2=0.75), 2)  # 0.75 is exact
    optimizer = Optimizer(apply_if_finite(adam(0.1, beta_2=0.75), max_consecutive_errors=2), {"w": w})
    params = np.ones(1, np.float32)
    state, update = peer.init(params), in_numpy(peer.update)
    for g in gradients:
        optimizer.apply({"w": tf.constant([g], tf.float32)})
        updates, state = update(np.array([g], np.float32), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(w, params, rtol=1e-6)
    assert np.isnan(w.numpy()).all(), "the third error in a row was to be let through"


def test_noise_has_the_variance_that_optax_gives_it() -> None:
    gradients = {"w": tf.zeros([300, 300])}
    noise = gradient_noise(0.04, gamma=0.6, seed=3)
    peer = optax.add_noise(0.04, 0.6, jax.random.key(0))
    state = peer.init({"w": np.zeros((300, 300))})
    draws = []
    for step in range(3):
        mine, _ = noise.update(gradients, {}, gradients, step=tf.constant(step, tf.int64))
        theirs, state = peer.update({"w": np.zeros((300, 300), np.float32)}, state)
        assert abs(np.mean(mine["w"])) < 0.003
        assert np.std(mine["w"]) == pytest.approx(float(np.std(theirs["w"])), rel=0.02)
        draws.append(mine["w"].numpy())
    assert abs(np.corrcoef(draws[0].ravel(), draws[1].ravel())[0, 1]) < 0.02


def test_noise_is_a_function_of_the_seed_the_step_and_the_path() -> None:
    zeros = {"a": tf.zeros([4]), "b": tf.zeros([4])}

    def draw(seed: int, step: int) -> dict[str, np.ndarray]:
        made, _ = gradient_noise(1.0, seed=seed).update(zeros, {}, zeros, step=tf.constant(step, tf.int64))
        return {path: x.numpy() for path, x in made.items()}

    np.testing.assert_array_equal(draw(1, 2)["a"], draw(1, 2)["a"])
    assert not np.array_equal(draw(1, 2)["a"], draw(1, 2)["b"])
    assert not np.array_equal(draw(1, 2)["a"], draw(2, 2)["a"])
    assert not np.array_equal(draw(1, 2)["a"] * np.sqrt(3**0.55), draw(1, 1)["a"] * np.sqrt(2**0.55))


def test_averages_begin_where_they_should() -> None:
    w = tf.Variable(10.0)
    biased, debiased = ema(0.9, debias=False), ema(0.9)
    optimizer = Optimizer(chain(sgd(1.0), biased, debiased, polyak(start=1)), {"w": w})
    assert float(optimizer.slots["ema_2/average"]["w"]) == 10.0
    weights = []
    for gradient in (1.0, 2.0, 4.0):
        optimizer.apply({"w": tf.constant(gradient)})
        weights.append(float(w))
    assert weights == [9.0, 7.0, 3.0]
    average = {slot: float(values["w"]) for slot, values in optimizer.slots.items()}
    assert average["ema/average"] == pytest.approx(0.729 * 10 + 0.1 * (0.81 * 9 + 0.9 * 7 + 3))
    assert average["ema_2/average"] == pytest.approx((0.81 * 9 + 0.9 * 7 + 3) / (0.81 + 0.9 + 1))
    assert average["polyak/average"] == pytest.approx((7 + 3) / 2)


def test_the_plateau_needs_the_loss() -> None:
    optimizer = Optimizer(chain(sgd(0.1), reduce_on_plateau()), {"w": tf.Variable(1.0)})
    with pytest.raises(ValueError, match=r"`value` is missing; `reduce_on_plateau` looks at the loss"):
        optimizer.apply({"w": tf.constant(1.0)})


def test_zero_gradients_and_zero_weights_are_finite() -> None:
    for rule in (
        lamb(0.1),
        lars(0.1),
        sam(sgd(0.1)),
        shampoo(0.1),
        adam(0.1),
        prodigy(),
        dadapt_adamw(),
        dog(),
        mechanic(sgd(1.0)),
        lbfgs(0.1),
        chain(clip_by_global_norm(1.0), sgd(0.1)),
    ):
        params = {"w": tf.Variable(tf.zeros([2, 3])), "b": tf.Variable([0.0, 1.0])}
        optimizer = Optimizer(rule, params)
        for _ in range(3):
            optimizer.apply({path: tf.zeros_like(v) for path, v in params.items()})
        assert all(np.isfinite(v.numpy()).all() for v in params.values())


def test_a_schedule_counts_applied_updates_only() -> None:
    w = tf.Variable(0.0)
    optimizer = Optimizer(sgd(piecewise_constant([1.0, 10.0, 100.0], boundaries=[1, 2])), {"w": w})
    for apply_if in (True, False, False, True, False, True):
        optimizer.apply({"w": tf.constant(-1.0)}, apply_if=tf.constant(apply_if))
    assert float(w) == 111.0


def test_decay_follows_a_schedule_of_its_own() -> None:
    w = tf.Variable([2.0])
    optimizer = Optimizer(adamw(0.5, weight_decay=piecewise_constant([0.0, 0.1], boundaries=[1])), {"w": w})
    optimizer.apply({"w": tf.constant([0.0])})
    np.testing.assert_array_equal(w, [2.0])
    optimizer.apply({"w": tf.constant([0.0])})
    np.testing.assert_allclose(w, [2.0 * (1.0 - 0.5 * 0.1)], rtol=1e-6)


def test_gin_builds_a_chain_with_its_schedule() -> None:
    gin.parse_config("""
        chain.transforms = [@clip_by_global_norm(), @adamw()]
        clip_by_global_norm.max_norm = 1.0
        adamw.learning_rate = @warmup_cosine()
        adamw.no_decay = ['b']
        warmup_cosine.peak_rate = 0.1
        warmup_cosine.warmup_steps = 5
        warmup_cosine.total_steps = 50
    """)
    made = gin.get_configurable("chain")()
    assert isinstance(made, Transform)
    assert [part.name for part in made.parts] == ["clip_by_global_norm", "adamw"]
    params = {"w": tf.Variable([1.0]), "b": tf.Variable([1.0])}
    Optimizer(made, params).apply({"w": tf.constant([1.0]), "b": tf.constant([1.0])})
    np.testing.assert_array_equal(params["w"], [1.0])  # the first rate of the warm-up is zero


@pytest.mark.parametrize(
    ("rate", "cure"),
    [
        (tf.Variable(0.1), r"`learning_rate` is a variable; give a schedule.*`learning_rate=lambda step: variable`"),
        (tf.constant(0.1), r"of type EagerTensor; give a Python number, or a schedule: `lambda step: ...`"),
        ("0.1", r"`learning_rate` is '0.1', of type str; give a Python number, or a schedule"),
        (-0.1, r"`learning_rate` is -0.1; give a number of at least zero, or a schedule"),
    ],
)
def test_a_rate_of_another_type_hears_another_cure_than_one_out_of_range(rate: object, cure: str) -> None:
    with pytest.raises(ValueError, match=cure):
        sgd(rate)


COMPILED = tf.function(half_of_squares, jit_compile=True, autograph=False)
SHAPES = [(), (1,), (10,), (2047,), (5000,), (784, 128), (3, 3, 64, 128), (5000, 1), (1, 5000), (0,), (0, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_half_of_squares_is_numpys_with_xla_and_without(shape):
    x = np.float32(np.random.RandomState(0).normal(0.0, 30.0, shape))
    for call in (tf.function(half_of_squares, autograph=False), COMPILED):
        found = call(tf.constant(x))
        np.testing.assert_allclose(found, 0.5 * np.sum(np.square(x, dtype="float64")), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_non_finite_value_shows_at_every_place(bad):
    for place in (0, 4999):
        x = np.ones([5000], "float32")
        x[place] = bad
        assert not np.isfinite(COMPILED(tf.constant(x)))


def test_function_knows_whether_xla_compiles_it_also_in_its_loops():
    seen = []

    def look(x):
        seen.append(in_xla())
        tf.while_loop(lambda i: i < 2, lambda i: (seen.append(in_xla()), i + 1)[1:], (0,))
        tf.cond(x > 0.0, lambda: (seen.append(in_xla()), x)[1], lambda: x)
        return x

    for jit_compile in (False, True):
        seen.clear()
        tf.function(look, jit_compile=jit_compile, autograph=False).get_concrete_function(tf.constant(1.0))
        assert seen == [jit_compile] * 3
    assert not in_xla()
