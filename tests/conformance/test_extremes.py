"""Layers, losses and metrics on extreme inputs, against their float64 definitions."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import layers, losses, metrics
from core.losses import adversarial

from . import battery
from .battery import RNG, Row
from .extreme_rows import EXTREME_ROWS

every_row = pytest.mark.parametrize("row", EXTREME_ROWS, ids=lambda row: row.id)


def gap(found: tf.Tensor, expected: tf.Tensor) -> float:
    """As `battery.distance`, but a NaN or an infinity is right if both have it."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    same = np.isnan(found) & np.isnan(expected) | (found == expected)
    return battery.distance(np.where(same, 0.0, found), np.where(same, 0.0, expected))


@functools.cache
def compiled_outputs() -> dict[str, list[tf.Tensor]]:
    """Returns the outputs of all rows from one XLA program."""
    parts = {row.id: (row, row.make(RNG), row.example()) for row in EXTREME_ROWS}

    @tf.function(jit_compile=True, autograph=False)
    def outputs(inputs: dict[str, list[tf.Tensor]]) -> dict[str, list[tf.Tensor]]:
        return {key: battery.outputs(row.call, part, inputs[key]) for key, (row, part, _) in parts.items()}

    return outputs({key: example for key, (*_, example) in parts.items()})


@every_row
def test_outputs_and_gradients_are_those_of_float64(row: Row) -> None:
    narrow, wide = row.make(RNG), battery.in_float64(row.make(RNG))
    expected = tf.nest.flatten(row.peer(narrow, *row.inputs(np.random.default_rng(5), battery.ROWS)))
    ys, gradients = battery.value_and_gradients(row, narrow, row.example())
    for found in (ys, compiled_outputs()[row.id]):
        for y, z in zip(found, expected, strict=True):
            assert gap(y, z) <= row.tolerance
    exact = battery.value_and_gradients(row, wide, row.example(dtype=tf.float64))[1]
    for gradient, z in zip(gradients, exact, strict=True):
        assert gap(gradient, z) <= 10.0 * row.tolerance


INF = np.inf
LOGITS = np.array([[-INF, 0.0, 1e4], [-INF, -INF, 3.0], [-1e4, 0.0, 1e4], [-INF, 0.0, 1.0]])
LABELS = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.25, 0.75], [0.0, 0.6, 0.4]])
SCORES = np.array([-INF, INF, -INF, INF, -1e4, 1e4, -1e4, 1e4, 0.0])
ANSWERS = np.array([0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0])


def select(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Multiplies; a product with zero is zero, even of infinity."""
    return np.where(weights == 0.0, 0.0, np.where(weights == 0.0, 1.0, weights) * np.where(weights == 0.0, 0.0, values))


def softmax(z: np.ndarray) -> np.ndarray:
    powers = np.exp(z - z.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def cross_entropy(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shifted = z - z.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -select(labels, log_p).sum(-1), softmax(z) - labels


def divergence(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    loss, gradient = cross_entropy(z, labels)
    return loss + select(labels, np.log(np.where(labels == 0.0, 1.0, labels))).sum(-1), gradient


def binary(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    loss = select(labels, np.logaddexp(0.0, -z)) + select(1.0 - labels, np.logaddexp(0.0, z))
    return loss, 0.5 * (1.0 + np.tanh(z / 2.0)) - labels


def positives(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cross-entropy that reads label 1 only."""
    loss, gradient = binary(z, labels)
    return select(labels, loss), select(labels, gradient)


def real_side(logits: Any, labels: Any) -> tf.Tensor:
    return adversarial.non_saturating().discriminator(logits, -100.0 * tf.ones_like(logits))


Case = tuple[Callable[..., tf.Tensor], Any, Any]  # a loss, logits and labels


INFINITE: dict[str, Case] = {
    "softmax": (losses.softmax_cross_entropy, LOGITS, LABELS),
    "kl": (losses.kl_divergence, LOGITS, LABELS),
    "sigmoid": (losses.sigmoid_cross_entropy, SCORES, ANSWERS),
    "focal": (partial(losses.focal, gamma=0.0), SCORES, ANSWERS),
    "focal of positives": (partial(losses.focal, gamma=0.0, alpha=1.0), SCORES, ANSWERS),
    "non_saturating": (real_side, SCORES, np.ones_like(SCORES)),
}
NAN: dict[str, Case] = {
    "NaN: softmax": (losses.softmax_cross_entropy, [[np.nan, 1.0]], [[0.0, 0.0]]),
    "NaN: kl": (losses.kl_divergence, [[np.nan, 1.0]], [[0.0, 0.0]]),
    "NaN: sigmoid": (losses.sigmoid_cross_entropy, [np.nan], [0.0]),
    "NaN: focal of positives": (partial(losses.focal, alpha=1.0), [np.nan], [0.0]),
    "NaN: non_saturating": (real_side, [np.nan], [1.0]),
}


@functools.cache
def values_and_gradients(compiled: bool) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Returns both for each case, from one program if they are compiled."""
    cases = {**INFINITE, **NAN}

    def call(all_logits: dict[str, tf.Tensor]) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        found = {}
        for name, logits in all_logits.items():
            with tf.GradientTape() as tape:
                tape.watch(logits)
                value = cases[name][0](logits, tf.constant(cases[name][2], tf.float32))
            found[name] = value, tape.gradient(value, logits)
        return found

    call = tf.function(call, jit_compile=True, autograph=False) if compiled else call
    return call({name: tf.constant(logits, tf.float32) for name, (_, logits, _) in cases.items()})


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_an_infinite_logit_costs_nothing_where_its_label_is_zero(compiled: bool) -> None:
    definitions = {"softmax": cross_entropy, "kl": divergence, "focal of positives": positives}
    for name, (_, logits, labels) in INFINITE.items():
        both = values_and_gradients(compiled)[name]
        for found, expected in zip(both, definitions.get(name, binary)(logits, labels), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_logit_that_is_not_a_number_is_seen_where_its_label_is_zero(compiled: bool) -> None:
    for name in NAN:
        assert all(np.all(np.isnan(x)) for x in values_and_gradients(compiled)[name]), name


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_infinite_logit_costs_the_discriminator_what_its_share_of_the_label_is(smoothing: float) -> None:
    logits = tf.constant([-INF, INF, -1e4, 1e4, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = adversarial.non_saturating(smoothing).discriminator(logits, -100.0 * tf.ones_like(logits))
    expected, slopes = binary(logits.numpy().astype(np.float64), np.full(5, 1.0 - smoothing))
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(tape.gradient(value, logits), slopes, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8])
def test_max_pools_take_integers(dtype: tf.DType) -> None:
    x = np.random.default_rng(0).integers(0, 200, [2, 6, 6, 4])
    pooled = layers.MaxPool(2)(tf.constant(x, dtype))
    assert pooled.dtype == dtype
    np.testing.assert_array_equal(pooled, x.reshape(2, 3, 2, 3, 2, 4).max((2, 4)))
    np.testing.assert_array_equal(layers.global_max_pool(tf.constant(x, dtype)), x.max((1, 2)))


def test_log_cosh_keeps_the_digits_of_small_differences() -> None:
    d = np.array([0.0, 1e-12, 1e-6, 1e-3, 0.1, 0.999, 1.001, 3.0, 50.0, 1e4], np.float32)
    with tf.GradientTape() as outer:
        x = tf.constant(np.concatenate([d, -d]))
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = losses.log_cosh(x, tf.zeros_like(x))
        slope = tape.gradient(value, x)
    wide = x.numpy().astype(np.float64)
    size = np.minimum(np.abs(wide), 50.0)  # beyond it only |d| − log 2 is left
    np.testing.assert_allclose(value, np.log1p(2.0 * np.sinh(size / 2.0) ** 2) + (np.abs(wide) - size), rtol=2e-6)
    np.testing.assert_allclose(slope, np.tanh(wide), rtol=1e-6)
    np.testing.assert_allclose(outer.gradient(slope, x), 1.0 - np.tanh(wide) ** 2, rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("mean", "deviation"), [(3e7, 8.0), (-2e4, 0.1), (0.0, 1.0)])
def test_r2_of_targets_far_from_zero(mean: float, deviation: float, compiled: bool) -> None:
    rng = np.random.default_rng(3)
    targets = (mean + deviation * rng.normal(size=600)).astype(np.float32)
    predictions = (targets + 0.5 * deviation * rng.normal(size=600)).astype(np.float32)
    weight = rng.integers(0, 3, 600).astype(np.float32)

    def r2() -> tf.Tensor:
        parts = [
            metrics.R2.of(predictions[part], targets[part], weight[part]) for part in (slice(0, 150), slice(150, 600))
        ]
        return metrics.merge(*parts).result()

    p, t, w = (x.astype(np.longdouble) for x in (predictions, targets, weight))
    spread = (w * (t - np.average(t, weights=w)) ** 2).sum()
    found = tf.function(r2, jit_compile=True, autograph=False)() if compiled else r2()
    assert float(found) == pytest.approx(float(1 - (w * (p - t) ** 2).sum() / spread), rel=1e-6)


@pytest.mark.parametrize(("middle", "steps"), [(3e7, [-2.0, 2.0]), (1.5e7, [0.0, 1.0]), (2.0**24 - 2.0, [0.0, 1.0])])
def test_r2_sees_targets_that_differ_by_one_step_of_float32(middle: float, steps: list[float]) -> None:
    targets = np.float32(middle) + np.resize(steps, 100).astype(np.float32)
    predictions = targets + np.resize([1.0, 0.0, -2.0], 100).astype(np.float32)
    t, p = targets.astype(np.float64), predictions.astype(np.float64)
    expected = 1.0 - ((p - t) ** 2).sum() / ((t - t.mean()) ** 2).sum()
    assert float(metrics.R2.of(predictions, targets).result()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [0.1, 3.7, 3e7])
@pytest.mark.parametrize("n", [3, 100, 3000])
def test_r2_of_equal_targets_is_undefined_under_weights_that_round(value: float, n: int) -> None:
    targets = np.full(n, value, np.float32)
    for weight in (np.full(n, 0.1), np.random.default_rng(n).random(n)):
        assert np.isnan(metrics.R2.of(targets + 4.0, targets, weight.astype(np.float32)).result())


def test_an_answer_that_is_not_a_number_is_not_class_zero() -> None:
    logits, labels = [[np.nan, np.nan], [1.0, np.nan], [2.0, 1.0]], [0, 0, 0]
    for call in (metrics.accuracy, partial(metrics.top_k_accuracy, k=1), partial(metrics.top_k_accuracy, k=2)):
        np.testing.assert_array_equal(call(logits, labels)[::2], [0.0, 1.0])
    np.testing.assert_array_equal(metrics.accuracy(logits, labels), [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(metrics.predicted(logits), [-1, -1, 0])
    for state in (metrics.Confusion, metrics.IoU):
        assert all(np.isnan(x) for x in tf.nest.flatten(state.of(metrics.predicted(logits), labels, 2).result()))
    assert np.isnan(metrics.ClassCoverage.of(metrics.predicted(logits), 2).result())


def test_states_of_unlike_shapes_are_not_merged() -> None:
    one, other = metrics.IoU.of([0], [0], 1), metrics.IoU.of([0, 1, 2], [0, 1, 1], 3)
    with pytest.raises(ValueError, match=r"`b.counts` has shape \(3, 3\), but `a.counts` \(1, 1\)"):
        metrics.merge(one, other)
    # Also with shapes that are unknown while tracing.
    signature = [tf.TensorSpec([None, None], tf.float64)] * 2
    merged = tf.function(
        lambda a, b: metrics.merge(metrics.IoU(a), metrics.IoU(b)), input_signature=signature, autograph=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        merged(one.counts, other.counts)
    with pytest.raises(TypeError):
        metrics.merge(one, metrics.Confusion(one.counts))
