"""Normalisation: extremes, and batch statistics that add up over microbatches and replicas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core.layers import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Linear, RMSNorm, Sequential
from core.random import Rng
from core.task.statistics import Statistics, Sums, commit, summing_over_replicas

RNG = Rng.from_seed(8)
NORMS: dict[str, Callable[[], Any]] = {
    "LayerNorm": lambda: LayerNorm(4),
    "RMSNorm": lambda: RMSNorm(4),
    "GroupNorm": lambda: GroupNorm(4, 2),
    "InstanceNorm": lambda: InstanceNorm(4),
    "BatchNorm": lambda: lambda x: BatchNorm(4)(x, statistics=Statistics()),
}


@pytest.mark.parametrize("name", NORMS)
@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([tf.float32, tf.bfloat16, tf.float16]), st.sampled_from([0.0, 1e-4, 1.0, 6e4]), st.integers(0, 3)
)
def test_extremes_stay_finite(name: str, dtype: tf.DType, size: float, rows: int) -> None:
    layer = NORMS[name]()
    x = tf.cast(size * tf.sign(RNG.normal([rows, 3, 4])), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.square(tf.cast(y, tf.float32)))
    assert y.dtype == dtype
    assert np.isfinite(tf.cast(y, tf.float32)).all()
    assert np.isfinite(tf.cast(tape.gradient(loss, x), tf.float32)).all()


@pytest.mark.parametrize("name", ["LayerNorm", "GroupNorm", "InstanceNorm", "BatchNorm"])
def test_a_mean_far_from_zero_costs_no_precision(name: str) -> None:
    x = RNG.normal([4, 16, 4])
    np.testing.assert_allclose(NORMS[name]()(x + 1000.0), NORMS[name]()(x), atol=5e-3)


def steps(norm: BatchNorm, batches: list[tf.Tensor], microbatches: int = 1) -> None:
    """Acts as the engine: sums over microbatches, then one commit."""
    for batch in batches:
        total = None
        for part in tf.split(batch, microbatches):
            statistics = Statistics()
            norm(part, statistics=statistics)
            sums = statistics.sums
            total = sums if total is None else tf.nest.map_structure(tf.add, total, sums)
        commit(statistics.averages(total))


def test_averages_are_right_from_the_first_update_on() -> None:
    """By hand: weights `decay ** k`, over their sum."""
    norm = BatchNorm(3, decay=0.9)
    batches = [1.0 + i + (1.0 + 0.5 * i) * RNG.fold(i).normal([6, 3]) for i in range(4)]
    for count in range(1, 5):
        steps(norm, batches[count - 1 : count])
        weights = np.array([0.9 ** (count - 1 - i) for i in range(count)])
        means = np.stack([batch.numpy().mean(0) for batch in batches[:count]])
        variances = np.stack([batch.numpy().var(0) for batch in batches[:count]])
        np.testing.assert_allclose(norm.moving_mean, weights @ means / weights.sum(), rtol=1e-5)
        np.testing.assert_allclose(norm.moving_variance, weights @ variances / weights.sum(), rtol=1e-5)
        assert float(norm.moving_weight) == pytest.approx(1.0 - 0.9**count)


@pytest.mark.parametrize("microbatches", [2, 3, 6])
def test_microbatches_make_the_averages_of_the_whole_batch(microbatches: int) -> None:
    whole, parts = BatchNorm(3), BatchNorm(3)
    batches = [10.0 + RNG.fold(i).normal([6, 3]) for i in range(3)]
    steps(whole, batches)
    steps(parts, batches, microbatches)
    np.testing.assert_allclose(parts.moving_mean, whole.moving_mean, rtol=1e-6)
    np.testing.assert_allclose(parts.moving_variance, whole.moving_variance, rtol=1e-4)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_the_moving_variance_is_exact_ten_thousand_deviations_from_zero(microbatches: int) -> None:
    """In the first step, whose sums are about zero, and when the mean moves as far from step to step."""
    norm = BatchNorm(3, decay=0.9)
    batches = [RNG.fold(i).normal([60, 5, 3]) + np.float32([1e4 * (i + 1), -1e3, 0.0]) for i in range(4)]
    steps(norm, batches, microbatches)
    weights = 0.9 ** np.arange(3.0, -1.0, -1.0)
    variances = np.stack([batch.numpy().astype(np.float64).var((0, 1)) for batch in batches])
    np.testing.assert_allclose(norm.moving_variance, weights @ variances / weights.sum(), rtol=2e-6)


def test_evaluation_normalises_by_the_averages_and_assigns_nothing() -> None:
    norm = BatchNorm(3, epsilon=1e-5)
    steps(norm, [2.0 + 3.0 * RNG.normal([64, 3])])
    before = [v.numpy() for v in norm.variables]
    x = RNG.fold("x").normal([5, 3])
    expected = (x - norm.moving_mean.numpy()) / np.sqrt(norm.moving_variance.numpy() + 1e-5)
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-6)
    norm(x, statistics=Statistics())
    for old, new in zip(before, norm.variables, strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_step_without_values_leaves_the_averages_alone() -> None:
    norm = BatchNorm(2)
    steps(norm, [tf.zeros([0, 2])])
    np.testing.assert_array_equal(norm.moving_variance, [1.0, 1.0])
    assert float(norm.moving_weight) == 0.0
    steps(norm, [tf.constant([[1.0, 2.0], [3.0, 6.0]]), tf.zeros([0, 2])])
    np.testing.assert_array_equal(norm.moving_mean, [2.0, 4.0])
    np.testing.assert_array_equal(norm.moving_variance, [1.0, 4.0])


def test_commit_can_be_withheld() -> None:
    norm, statistics = BatchNorm(2), Statistics()
    norm(RNG.normal([4, 2]), statistics=statistics)
    commit(statistics.averages(), apply_if=tf.constant(False))
    assert float(norm.moving_weight) == 0.0
    commit(statistics.averages(), apply_if=tf.constant(True))
    assert float(norm.moving_weight) == pytest.approx(0.01)


def test_a_layer_called_twice_has_both_batches_in_its_sums() -> None:
    once, twice = BatchNorm(2), BatchNorm(2)
    x = RNG.normal([6, 2])
    statistics = Statistics()
    twice(x[:2], statistics=statistics)
    twice(x[2:], statistics=statistics)
    assert len(statistics.sums) == 1
    commit(statistics.averages())
    steps(once, [x])
    np.testing.assert_allclose(twice.moving_variance, once.moving_variance, rtol=1e-5)


@pytest.mark.parametrize("sync", [True, False])
def test_synchronised_replicas_normalise_by_the_batch_of_all(sync: bool) -> None:
    norm = BatchNorm(2, sync=sync)
    x = RNG.normal([6, 2]) * [1.0, 3.0] + 5.0
    whole = norm(x, statistics=Statistics())
    seen: list[Sums] = []
    for part in (x[:2], x[2:]):  # two replicas of unequal size: first what each of them would send
        with summing_over_replicas(lambda sums: (seen.append(sums), sums)[1]):
            norm(part, statistics=Statistics())
    assert len(seen) == (2 if sync else 0)
    if sync:
        total = Sums(*(a + b for a, b in zip(*seen, strict=True)))
        with summing_over_replicas(lambda sums: total):
            parts = [norm(part, statistics=Statistics()) for part in (x[:2], x[2:])]
        np.testing.assert_allclose(tf.concat(parts, 0), whole, atol=1e-5)


def test_sums_are_carried_through_a_loop_in_a_graph() -> None:
    net = Sequential([Linear(3, 4, rng=RNG), BatchNorm(4), tf.nn.relu, BatchNorm(4)])
    x = RNG.normal([4, 5, 3])

    @tf.function(autograph=False)
    def loop() -> Any:
        held = []

        def body(i: tf.Tensor, sums: Any) -> Any:
            statistics = Statistics()
            net(x[i], statistics=statistics)
            held.append(statistics)
            return i + 1, tf.nest.map_structure(tf.add, sums, statistics.sums)

        zeros = {f"{k:04d}": Sums(*(tf.zeros(shape, tf.float64) for shape in ([], [4], [4]))) for k in range(2)}
        _, sums = tf.while_loop(lambda i, _: i < 4, body, (0, zeros))
        return sums, list(held[0].averages(sums).values())

    sums, averages = loop()
    eager = Statistics()
    for part in tf.unstack(x):
        net(part, statistics=eager)
    for a, b in zip(tf.nest.flatten(sums), tf.nest.flatten(eager.sums), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(averages, eager.averages().values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: LayerNorm(0), "`size` is 0"),
        (lambda: LayerNorm(3, epsilon=0.0), "`epsilon` is 0.0; give a small positive number"),
        (lambda: GroupNorm(6, 0), "`groups` is 0"),
        (lambda: GroupNorm(6, 4), "`groups` is 4, which doesn't divide `size=6`"),
        (lambda: BatchNorm(3, decay=1.0), "`decay` is 1.0; give a fraction"),
        (lambda: BatchNorm(3)(tf.zeros([2, 4])), r"`BatchNorm` has shape \(2, 4\).*`size=3`"),
        (lambda: InstanceNorm(3)(tf.zeros([2, 3])), r"\[batch, ..., channels\] with space between them"),
    ],
)
def test_bad_input_is_named(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()
