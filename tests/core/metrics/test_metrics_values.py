"""Metrics by hand: values one can check, labels out of range, ties, AUC's error bound, and errors of bad input."""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core import metrics


def test_accuracy_by_hand() -> None:
    logits = [[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(metrics.accuracy(logits, [0, 1, 0]), [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(metrics.top_k_accuracy(logits, [1, 0, 1], k=2), [1.0, 0.0, 1.0])


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_a_label_out_of_range_is_neither_right_nor_wrong(compiled: bool) -> None:
    def call(logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        return [metrics.accuracy(logits, labels), *(metrics.top_k_accuracy(logits, labels, k=k) for k in (1, 2))]

    values = tf.function(call, jit_compile=compiled)(tf.zeros([4, 3]), tf.constant([0, -1, 3, 2]))
    np.testing.assert_array_equal(values, [[1.0, np.nan, np.nan, 0.0]] * 3)


def test_a_constant_answer_gets_no_credit_for_ties_nor_nan_any() -> None:
    assert [float(metrics.top_k_accuracy([[0.0] * 5], [y], k=2)[0]) for y in range(5)] == [1, 1, 0, 0, 0]
    assert float(metrics.top_k_accuracy([[1.0, np.nan]], [1], k=1)[0]) == 0.0


def test_precision_and_recall_by_hand() -> None:
    state = metrics.PrecisionRecall.of([0.9, 0.8, 0.7, 0.1, 0.2], [1, 1, 0, 1, 0])
    figures = {key: float(x) for key, x in state.result().items()}
    assert figures == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3})
    assert float(metrics.PrecisionRecall.of([-1.0, 2.0], [True, True], threshold=0.0).result()["recall"]) == 0.5


def test_confusion_by_hand() -> None:
    state = metrics.Confusion.of([0, 0, 1, 2], [0, 1, 1, 1], 4)
    np.testing.assert_array_equal(state.counts, [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    # Class 3 occurs nowhere and is left out; class 2 was only predicted, and counts as never right.
    figures = {key: float(x) for key, x in state.result().items()}
    assert figures == pytest.approx({"accuracy": 0.5, "precision": 0.5, "recall": 4 / 9, "f1": (2 / 3 + 0.5) / 3})
    assert float(metrics.IoU(state.counts).result()) == pytest.approx((1 / 2 + 1 / 3) / 3)


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_one_value_out_of_range_makes_every_figure_nan(compiled: bool) -> None:
    def states(bad: tf.Tensor) -> list[Any]:
        return [
            metrics.Confusion.of(tf.constant([0, 1]), bad, 2),
            metrics.Confusion.of(bad, tf.constant([0, 1]), 2),
            metrics.IoU.of(tf.constant([0, 1]), bad, 2),
            metrics.AUC.of(tf.constant([0.1, 0.9]), bad),
            metrics.AUC.of(tf.cast(bad, tf.float32), tf.constant([0, 1])),
            metrics.PrecisionRecall.of(tf.constant([0.1, 0.9]), bad),
        ]

    call = tf.function(states, jit_compile=compiled, autograph=False)
    for index in (-1, 2):
        for state in call(tf.constant([0, index])):
            assert all(np.isnan(x) for x in tf.nest.flatten(state.result())), state


def test_pixels_beyond_the_counts_of_float32_are_counted() -> None:
    one, many = metrics.Confusion.of([1], [1], 2), metrics.Confusion(tf.fill([2, 2], tf.constant(2.0**24, tf.float64)))
    assert float(metrics.merge(many, one).counts[1, 1]) == 2**24 + 1


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    positives, negatives = scores[labels == 1][:, None], scores[labels == 0]
    precision = [labels[scores >= s].mean() for s in scores]
    return {
        "roc": float(((positives > negatives) + 0.5 * (positives == negatives)).mean()),
        "pr": float((labels * precision).sum() / labels.sum()),
    }


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9999), rows=st.integers(2, 60), bins=st.sampled_from([2, 3, 10, 100, 1000]))
def test_the_error_of_auc_is_within_its_bound(seed: int, rows: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    labels[:2] = [0, 1]
    scores = rng.beta(1 + labels, 2).astype(np.float32)
    state = metrics.AUC.of(scores, labels, bins=bins)
    figures, bounds, exact = state.result(), state.error_bounds(), exact_auc(scores, labels)
    for key, value in exact.items():
        assert abs(float(figures[key]) - value) <= float(bounds[key]) + 1e-6


def test_the_error_of_auc_shrinks_with_the_bins() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 2000)
    scores = rng.beta(1 + labels, 1).astype(np.float32)  # the negatives are uniform: their density is 1
    exact = exact_auc(scores, labels)
    for bins in (10, 100, 1000):
        state = metrics.AUC.of(scores, labels, bins=bins)
        assert abs(float(state.result()["roc"]) - exact["roc"]) <= 0.5 / bins
        assert float(state.error_bounds()["roc"]) <= 0.6 / bins  # this sample's density is a little uneven


def test_auc_of_perfect_reversed_and_constant_scores() -> None:
    labels = [0, 0, 1, 1]
    figures = [metrics.AUC.of(s, labels).result() for s in ([0.0, 0.1, 0.9, 1.0], [1.0, 0.9, 0.1, 0.0], [0.5] * 4)]
    assert [float(x["roc"]) for x in figures] == [1.0, 0.0, 0.5]
    assert [float(x["pr"]) for x in figures] == pytest.approx([1.0, (1 / 3 + 2 / 4) / 2, 0.5])


def test_auc_of_one_kind_only_is_not_a_number() -> None:
    figures = metrics.AUC.of([0.2, 0.7], [1, 1]).result()
    assert np.isnan(figures["roc"])
    assert float(figures["pr"]) == 1.0


def test_perplexity_of_a_uniform_choice_is_the_number_of_choices() -> None:
    assert float(metrics.Perplexity.of(np.full([5], np.log(8.0), np.float32)).result()) == pytest.approx(8.0)


def test_a_uniform_choice_of_a_byte_costs_eight_bits_and_of_two_bytes_at_once_sixteen() -> None:
    costs = np.log([256.0, 65536.0, 2.0]).astype(np.float32)
    assert float(metrics.BitsPerByte.of(costs[:2], [1, 2]).result()) == pytest.approx(8.0)
    # An end of text has zero bytes, which must be given all the same.
    assert float(metrics.BitsPerByte.of(costs, [1, 2, 0]).result()) == pytest.approx(25.0 / 3.0)
    assert np.isnan(metrics.BitsPerByte.of([1.0], [0]).result())


def test_r2_of_the_mean_is_zero_and_of_equal_targets_undefined() -> None:
    assert float(metrics.R2.of([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]).result()) == pytest.approx(0.0)
    assert float(metrics.R2.of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).result()) == 1.0
    assert np.isnan(metrics.R2.of([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]).result())


@pytest.mark.long
@pytest.mark.parametrize(
    ("middle", "dtype", "rows", "compiled"),  # of many rows, sums are taken about their mean first
    [
        (3e7, np.float32, 600, True),
        (3e7, np.float32, 20_000, False),
        (1e8, np.float64, 600, False),
        (1e8, np.float64, 20_000, True),
        (-1e12, np.float64, 600, False),
        (-1e12, np.float64, 20_000, True),
    ],
)
def test_r2_far_from_zero_is_that_of_targets_near_it(middle: float, dtype: Any, rows: int, compiled: bool) -> None:
    rng = np.random.default_rng(0)
    targets = (middle + 8.0 * rng.standard_normal(rows)).astype(dtype)
    predictions = (targets + 4.0 * rng.standard_normal(rows)).astype(dtype)
    weight = rng.random(rows).astype(np.float32)
    cuts = [0, 7, rows // 3, rows // 2, rows]  # as replicas and microbatches cut them

    def r2() -> tf.Tensor:
        parts = [metrics.R2.of(*(x[a:b] for x in (predictions, targets, weight))) for a, b in itertools.pairwise(cuts)]
        return functools.reduce(metrics.merge, parts).result()

    found = float(tf.function(r2, autograph=False, jit_compile=compiled or None)())
    near, error = targets.astype(np.float64) - middle, (predictions - targets).astype(np.float64)
    near -= np.average(near, weights=weight)
    expected = 1.0 - np.average(error**2, weights=weight) / np.average(near**2, weights=weight)
    assert found == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize("value", [0.1, 1e8 / 3.0, 1e-20])
@pytest.mark.parametrize("rows", [100, 20_000])
def test_r2_of_equal_targets_of_any_weight_is_undefined(value: float, rows: int) -> None:
    weight = np.random.default_rng(0).random(rows)
    targets = np.full(rows, value)
    assert np.isnan(metrics.R2.of(targets + 1.0, targets, weight).result())


def test_psnr_by_hand_and_of_equal_images() -> None:
    images = np.zeros([3, 4, 4, 1], np.float32)
    targets = images + np.array([10.0, 255.0, 0.0], np.float32)[:, None, None, None]
    decibels = metrics.psnr(images, targets, max_value=255.0)
    np.testing.assert_allclose(decibels, [20 * np.log10(25.5), 0.0, 138.474], rtol=1e-5)


def test_ssim_of_equal_images_is_one_and_equals_tensorflow_elsewhere() -> None:
    rng = np.random.default_rng(0)
    images, targets = rng.random((2, 3, 16, 20, 3)).astype(np.float32)
    np.testing.assert_allclose(metrics.ssim(images, images, max_value=1.0), 1.0, rtol=1e-6)
    actual = metrics.ssim(images, targets, max_value=1.0)
    np.testing.assert_allclose(actual, tf.image.ssim(images, targets, max_val=1.0), rtol=1e-4, atol=1e-6)


class Range(NamedTuple):
    """A user's custom state."""

    above: tf.Tensor
    count: tf.Tensor

    def result(self) -> dict[str, tf.Tensor]:
        return {"above": self.above / self.count}


def test_custom_state_needs_no_registration() -> None:
    state = metrics.merge(Range(tf.constant(1.0), tf.constant(2.0)), Range(tf.constant(2.0), tf.constant(4.0)))
    assert isinstance(state, Range)
    assert isinstance(state, metrics.State)
    assert float(state.result()["above"]) == 0.5
    assert not isinstance(tf.constant(1.0), metrics.State)


LOGITS, IMAGES = np.zeros([2, 3], np.float32), np.zeros([2, 12, 12, 1], np.float32)
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: metrics.accuracy(LOGITS, [0.0, 1.0]), "`labels` is float32; give integers"),
    (lambda: metrics.accuracy(LOGITS, [0, 1, 2]), "`labels` has shape (3,), but `logits` (2, 3)"),
    (lambda: metrics.accuracy(LOGITS, [[0], [1]]), "tf.squeeze(labels, -1)"),
    (lambda: metrics.accuracy(1.0, 0), "`logits` has shape (); it needs the axes [..., classes]"),
    (lambda: metrics.top_k_accuracy(LOGITS, [0, 1], k=0), "`k` is 0; it counts classes, from 1 to 3"),
    (lambda: metrics.top_k_accuracy(LOGITS, [0, 1], k=4), "`k` is 4; it counts classes, from 1 to 3"),
    (lambda: metrics.Mean.of([1.0, 2.0], weight=[1.0]), "`weight` has shape (1,), but `values` (2,)"),
    (lambda: metrics.Mean.of([1, 2]), "`values` is int32; give floats"),
    (lambda: metrics.Perplexity.of([1, 2]), "`cross_entropies` is int32; give floats"),
    (lambda: metrics.PrecisionRecall.of([0.1], [0.0]), "`labels` is float32; give integers"),
    (lambda: metrics.PrecisionRecall.of([0.1], [[0]]), "`labels` has shape (1, 1), but `scores` (1,)"),
    (lambda: metrics.Confusion.of(LOGITS, [0, 1], 3), "`predictions` is float32; give integers"),
    (lambda: metrics.Confusion.of([0, 1], [0], 3), "`labels` has shape (1,), but `predictions` (2,)"),
    (lambda: metrics.Confusion.of([0], [0], 0), "`num_classes` is 0; it is at least 1"),
    (lambda: metrics.IoU.of([0], [0], 2, weight=[[1.0]]), "`weight` has shape (1, 1)"),
    (lambda: metrics.AUC.of([0.5], [1], bins=1), "`bins` is 1"),
    (lambda: metrics.AUC.of([1], [1]), "`scores` is int32; give floats"),
    (lambda: metrics.MAE.of([1.0], [[1.0]]), "`targets` has shape (1, 1), but `predictions` (1,)"),
    (lambda: metrics.RMSE.of([1.0], [1.0], weight=[1.0, 2.0]), "`weight` has shape (2,), but `predictions` (1,)"),
    (lambda: metrics.R2.of([1.0], [1.0, 2.0]), "`targets` has shape (2,)"),
    (lambda: metrics.psnr(IMAGES, IMAGES[:1], max_value=1.0), "`targets` has shape (1, 12, 12, 1)"),
    (lambda: metrics.psnr(IMAGES, IMAGES, max_value=0.0), "`max_value` is 0.0; it is above 0"),
    (lambda: metrics.psnr(IMAGES.astype(np.uint8), IMAGES, max_value=255.0), "`images` is uint8; give floats"),
    (lambda: metrics.ssim(LOGITS, LOGITS, max_value=1.0), "[batch, height, width, channels]"),
    (lambda: metrics.ssim(IMAGES[:, :9], IMAGES[:, :9], max_value=1.0), "window needs 11 by 11 pixels"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_named_with_its_value_and_a_remedy(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
    with pytest.raises(ValueError, match=re.escape(message)):  # while tracing, before any step
        tf.function(call, autograph=False).get_concrete_function()
