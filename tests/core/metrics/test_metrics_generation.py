"""Metrics of generated examples: distances by hand, real against real, collapse, and errors of bad input."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy
import tensorflow as tf

from core import metrics
from core.metrics import ClassCoverage, Frechet, generation, in_manifold, kernel_distance

Array = np.ndarray


def sample(seed: int, rows: int, features: int, scale: float = 1.0, shift: float = 0.0) -> Array:
    """Returns correlated features: the same correlations for every seed."""
    mix = np.random.default_rng(99).normal(size=(features, features)) / np.sqrt(features)
    return (scale * np.random.default_rng(seed).normal(size=(rows, features)) @ mix + shift).astype(np.float32)


def fid(real: Array, fake: Array) -> float:
    """Computes as the paper's code does."""
    means = [x.astype(np.float64).mean(0) for x in (real, fake)]
    covariances = [np.atleast_2d(np.cov(x.astype(np.float64), rowvar=False)) for x in (real, fake)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1])
    return float(((means[0] - means[1]) ** 2).sum() + np.trace(sum(covariances)) - 2 * np.trace(root).real)


def distance(*args: Any) -> float:
    return float(Frechet.of(*args).result())


def test_the_distance_of_lines_is_that_of_their_means_and_deviations() -> None:
    real, fake = [[-1.0], [1.0]], [[2.0], [8.0]]  # means 0 and 5, variances 2 and 18
    assert distance(real, fake) == pytest.approx(25 + (np.sqrt(18) - np.sqrt(2)) ** 2)


@pytest.mark.parametrize(("rows", "features"), [(60, 1), (60, 5), (300, 64)])
def test_the_distance_is_the_papers_for_sets_of_different_sizes(rows: int, features: int) -> None:
    real, fake = sample(0, rows, features), sample(1, rows + 30, features, 1.3, 0.2)
    assert distance(real, fake) == pytest.approx(fid(real, fake), rel=1e-6)
    assert distance(fake, real) == pytest.approx(fid(real, fake), rel=1e-6)


def test_a_set_is_at_no_distance_from_itself_even_with_fewer_rows_than_features() -> None:
    for rows in (10, 200):
        features = sample(0, rows, 64)
        assert 0.0 <= distance(features, features[::-1]) < 1e-6
    dead = np.concatenate([features, np.zeros_like(features)], axis=1)  # features that never fire
    assert 0.0 <= distance(dead, dead) < 1e-6
    assert distance(dead, 2 * dead) == pytest.approx(distance(features, 2 * features), rel=1e-6)


def test_an_offset_far_above_the_spread_costs_no_digits() -> None:
    rng = np.random.default_rng(0)
    real, fake = (rng.integers(-50, 50, (2, 200, 4)) * [[[1]], [[2]]]).astype(np.float32)
    expected = fid(real, fake)
    assert distance(real + 1e5, fake + 1e5) == pytest.approx(expected, rel=1e-5)  # squares of 1e10 with spreads of 1e3


def test_states_of_microbatches_make_the_distance_of_the_whole() -> None:
    real, fake = sample(0, 90, 8), sample(1, 90, 8, 2.0)
    state = Frechet.of(real[:0], fake[:0])
    for start in (60, 0, 30):
        state = metrics.merge(state, Frechet.of(real[start : start + 30], fake[start : start + 30]))
    assert float(state.result()) == pytest.approx(fid(real, fake), rel=1e-6)


def test_one_set_may_be_measured_before_the_other() -> None:
    real, fake = sample(0, 50, 4), sample(1, 70, 4)
    state = metrics.merge(Frechet.of(real, real[:0]), Frechet.of(fake[:0], fake))
    assert float(state.result()) == pytest.approx(fid(real, fake), rel=1e-6)
    assert np.isnan(distance(real, fake[:0]))
    assert np.isnan(distance(real, fake[:1]))  # one example has no spread


def test_a_row_of_weight_zero_is_padding_and_of_weight_two_is_there_twice() -> None:
    real, fake = sample(0, 20, 3), sample(1, 20, 3)
    weight = np.repeat([0.0, 1.0, 2.0, 1.0], 5)
    spoilt = np.where(weight[:, None] == 0, np.float32(np.nan), real)
    expected = fid(*(np.concatenate([x[5:], x[10:15]]) for x in (real, fake)))
    assert distance(spoilt, fake, weight) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_feature_that_is_not_finite_makes_the_distance_nan_and_raises_nowhere(value: float) -> None:
    real, fake = sample(0, 20, 3), sample(1, 20, 3)
    fake[4, 1] = value
    assert np.isnan(distance(real, fake))
    assert np.isnan(tf.function(lambda: Frechet.of(real, fake).result())())


@pytest.mark.long
def test_frechet_of_real_against_real_is_the_mean_over_disjoint_halves() -> None:
    features = sample(0, 201, 6)
    found = float(Frechet.between_halves(features, seed=3))
    assert found == float(Frechet.between_halves(features, seed=3))
    assert found != float(Frechet.between_halves(features, seed=4))
    # Independent sets of as many rows are as far apart as the halves of one, and larger ones nearer.
    apart = np.mean([fid(sample(2 * i + 1, 100, 6), sample(2 * i + 2, 100, 6)) for i in range(20)])
    assert 0.6 * apart < found < 1.6 * apart
    assert found > 2 * float(Frechet.between_halves(np.concatenate([sample(i, 201, 6) for i in range(5)])))


@pytest.mark.long
def test_halves_of_four_points_are_one_of_three_pairs_of_pairs() -> None:
    points = np.array([[0.0], [1.0], [10.0], [100.0]], np.float32)
    pairs = [([0, 1], [2, 3]), ([0, 2], [1, 3]), ([0, 3], [1, 2])]
    possible = [distance(points[a], points[b]) for a, b in pairs]
    found = [float(Frechet.between_halves(points, seed=seed, splits=1)) for seed in range(12)]
    nearest = [min(possible, key=lambda x: abs(x - y)) for y in found]
    assert found == pytest.approx(nearest, rel=1e-6)
    assert set(nearest) == set(possible)
    mean = float(Frechet.between_halves(points, splits=60))
    assert mean == pytest.approx(np.mean(possible), rel=0.2)
    assert all(abs(mean - x) > 1e-3 for x in possible)  # not one split sixty times


# The kernel distance


def mmd(real: Array, fake: Array) -> float:
    """Computes the paper's unbiased estimate pair by pair."""

    def kernel(x: Array, y: Array) -> float:
        return float((x.astype(np.float64) @ y / len(x) + 1) ** 3)

    def among(rows: Array) -> float:
        return float(np.mean([kernel(x, y) for i, x in enumerate(rows) for j, y in enumerate(rows) if i != j]))

    return among(real) + among(fake) - 2 * float(np.mean([kernel(x, y) for x in real for y in fake]))


def test_the_kernel_distance_is_the_papers() -> None:
    real, fake = sample(0, 12, 4), sample(1, 12, 4, 1.3, 0.5)
    expected = mmd(real, fake)
    assert float(kernel_distance(real, fake, subsets=1, subset_size=12)) == pytest.approx(expected, rel=1e-5)
    assert float(kernel_distance(fake, real, subsets=3, subset_size=12)) == pytest.approx(expected, rel=1e-5)


def test_the_kernel_distance_of_subsets_is_without_bias() -> None:
    real, same, other = sample(0, 400, 4), sample(1, 400, 4), sample(2, 400, 4, 1.0, 0.5)
    found = [float(kernel_distance(real, x, subsets=10, subset_size=100)) for x in (same, other)]
    assert abs(found[0]) < 0.1 * found[1]
    assert found[1] == pytest.approx(float(kernel_distance(real, other, subsets=1, subset_size=400)), rel=0.2)


# The manifold


def membership(features: Array, reference: Array, k: int) -> Array:
    radii = [np.sort(np.linalg.norm(reference - x, axis=1))[k] for x in reference]
    return np.array([np.any(np.linalg.norm(reference - x, axis=1) <= radii) for x in features], np.float32)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_membership_is_the_papers(k: int) -> None:
    real, fake = (sample(i, 60, 4, 1.0 + i, 1.5 * i).astype(np.float64) for i in range(2))
    for features, reference in ((fake, real), (real, fake)):
        expected = membership(features, reference, k)
        assert 0 < expected.mean() < 1
        np.testing.assert_array_equal(in_manifold(features, reference, k=k), expected)


def test_membership_is_the_same_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, real = (sample(i, 60, 4, 1.0 + i) for i in range(2))
    whole = in_manifold(fake, real)
    monkeypatch.setattr(generation, "_TOGETHER", 7)
    np.testing.assert_array_equal(in_manifold(fake, real), whole)


def test_membership_on_a_line_by_hand() -> None:
    reference = [[0.0], [1.0], [3.0], [7.0]]  # with k = 1, balls of radius 1, 1, 2 and 4
    samples = [[-1.0], [-1.1], [2.5], [5.0], [11.0], [11.5]]
    np.testing.assert_array_equal(in_manifold(samples, reference, k=1), [1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(in_manifold(reference, reference, k=1), np.ones(4))


def test_collapse_costs_recall_and_nonsense_costs_precision() -> None:
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(10, 8))
    real = (np.repeat(centres, 20, axis=0) + rng.normal(size=(200, 8))).astype(np.float32)
    collapsed = (centres[0] + 0.5 * rng.normal(size=(200, 8))).astype(np.float32)
    noise = (30 * rng.normal(size=(200, 8))).astype(np.float32)

    def precision_and_recall(fake: Array) -> tuple[float, float]:
        return float(np.mean(in_manifold(fake, real))), float(np.mean(in_manifold(real, fake)))

    precision, recall = precision_and_recall(collapsed)
    assert precision > 0.9
    assert recall <= 0.1  # one mode of ten
    assert precision_and_recall(noise)[0] < 0.05


def test_non_finite_value_is_neither_in_nor_out() -> None:
    features, reference = sample(0, 4, 3), sample(1, 10, 3)
    features[1, 2] = np.nan
    np.testing.assert_array_equal(np.isnan(in_manifold(features, reference)), [False, True, False, False])
    reference[3, 0] = np.inf
    assert np.all(np.isnan(in_manifold(sample(0, 4, 3), reference)))


# Classes


def test_coverage_counts_the_classes_that_appear() -> None:
    state = ClassCoverage.of([3, 3, 3], 10)
    assert float(state.result()) == 1.0
    assert float(metrics.merge(state, ClassCoverage.of([[0, 9], [3, 0]], 10)).result()) == 3.0
    assert float(ClassCoverage.of([1, 2, 99], 10, [0.0, 0.5, 0.0]).result()) == 1.0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("index", [-1, 10])
def test_a_class_out_of_range_makes_coverage_nan(index: int, compiled: bool) -> None:
    call = tf.function(lambda x: ClassCoverage.of(x, 10).result(), jit_compile=compiled)
    assert np.isnan(call(tf.constant([0, index])))
    assert np.isnan(ClassCoverage.of(tf.zeros([0], tf.int32), 10).result())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Frechet.of(tf.zeros([4, 3]), tf.zeros([4, 2])), "`fake` has shape (4, 2), but `real` (4, 3)"),
        (lambda: Frechet.of(tf.zeros([4, 8, 8]), tf.zeros([4, 2])), "`real` has shape (4, 8, 8)"),
        (lambda: Frechet.of(tf.zeros([4, 2]), tf.zeros([3, 2]), tf.ones([4])), "`weight` has shape (4,), but `fake`"),
        (lambda: Frechet.of(tf.zeros([4, 2], tf.int32), tf.zeros([4, 2])), "`real` is int32"),
        (lambda: Frechet.between_halves(tf.zeros([4, 2]), splits=0), "`splits` is 0"),
        (lambda: in_manifold(tf.zeros([4, 2]), tf.zeros([3, 2])), "`k` is 3, but `reference` has 3 rows"),
        (lambda: in_manifold(tf.zeros([4, 2]), tf.zeros([9, 2]), k=0), "`k` is 0"),
        (
            lambda: in_manifold(tf.zeros([4, 2]), tf.zeros([9, 3])),
            "`reference` has shape (9, 3), but `features` (4, 2)",
        ),
        (
            lambda: kernel_distance(tf.zeros([9, 2]), tf.zeros([8, 2]), subset_size=9),
            "`subset_size` is 9, but `real` has 9 rows and `fake` 8",
        ),
        (lambda: ClassCoverage.of([0.5], 10), "`predictions` is float32"),
        (lambda: ClassCoverage.of([0], 0), "`num_classes` is 0"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
