"""All checks of every public metric, and of its state: parts add up, and values with weight zero aren't read."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core import metrics

from . import battery
from .battery import RNG
from .metric_rows import ROWS_OF_METRICS, MetricRow

NOT_METRICS = {"Figures", "State", "merge", "predicted"}  # helpers that metrics are built from
OF_WHOLE_SETS = {"kernel_distance"}  # neither a value per example nor additive: `test_metrics_generation` has its tests
MEANS = {"Mean", "BitsPerByte", "Perplexity", "MAE", "RMSE", "R2"}  # states that sum values; the others sum weights

every_row = pytest.mark.parametrize("row", ROWS_OF_METRICS, ids=lambda row: row.id)
every_state = pytest.mark.parametrize("row", [row for row in ROWS_OF_METRICS if row.state], ids=lambda row: row.id)


def example(row: MetricRow, rows: int = 30, seed: int = 0) -> list[tf.Tensor]:
    return [tf.constant(x) for x in row.inputs(np.random.default_rng(seed), rows)]


def made(row: MetricRow, inputs: list[tf.Tensor]) -> Any:
    return row.make(RNG)(*inputs)


def figures(row: MetricRow, inputs: list[tf.Tensor]) -> Any:
    return row.call(row.make(RNG), *inputs)


def distance(a: Any, b: Any) -> float:
    tf.nest.assert_same_structure(a, b)
    pairs = zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True)
    return max(battery.distance(x, y) for x, y in pairs)


def test_every_public_metric_has_a_row() -> None:
    assert set(metrics.__all__) - NOT_METRICS - OF_WHOLE_SETS == {row.part for row in ROWS_OF_METRICS}
    states = {name for name in metrics.__all__ if name[0].isupper()} - NOT_METRICS
    assert states == {row.part for row in ROWS_OF_METRICS if row.state}


@every_row
def test_agrees_with_its_peer(row: MetricRow) -> None:
    expected = row.peer(None, *row.inputs(np.random.default_rng(1), 30))
    assert distance(figures(row, example(row, seed=1)), expected) <= row.tolerance


@pytest.mark.long
@every_row
def test_eager_and_graph_agree_for_any_number_of_rows(row: MetricRow) -> None:
    def both(*inputs: tf.Tensor) -> Any:
        return made(row, list(inputs)), figures(row, list(inputs))

    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in example(row)]
    graph = tf.function(both, input_signature=specs, autograph=False)
    for rows in (30, 0):
        found, expected = graph(*example(row, rows)), both(*example(row, rows))
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), found, expected)
    assert graph.experimental_get_tracing_count() == 1


@pytest.mark.long
@every_row
def test_eager_and_xla_agree(row: MetricRow) -> None:
    def both(*inputs: tf.Tensor) -> Any:
        return made(row, list(inputs)), figures(row, list(inputs))

    compiled = tf.function(both, jit_compile=True, autograph=False)
    assert distance(compiled(*example(row)), both(*example(row))) <= 1e-6


@pytest.mark.long
@every_row
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_metric_takes_any_float_dtype(row: MetricRow, dtype: tf.DType) -> None:
    cast = [tf.cast(x, dtype) if x.dtype.is_floating else x for x in example(row)]
    full = [tf.cast(x, tf.float32) if x.dtype.is_floating else x for x in cast]
    # From float64 a metric computes in float64.
    assert distance(figures(row, cast), figures(row, full)) <= (1e-6 if dtype == tf.float64 else 0.0)


@pytest.mark.parametrize("row", [row for row in ROWS_OF_METRICS if not row.state], ids=lambda row: row.id)
def test_metric_without_a_state_has_one_value_per_example(row: MetricRow) -> None:
    for rows in (5, 0):
        value = made(row, example(row, rows))
        assert value.shape == [rows]
        assert value.dtype == tf.float32


@every_state
def test_state_is_a_flat_tuple_of_float64_sums(row: MetricRow) -> None:
    state = made(row, example(row))
    assert isinstance(state, metrics.State)
    leaves = tf.nest.flatten(state)
    assert all(leaf.dtype == tf.float64 and leaf.shape.is_fully_defined() for leaf in leaves)
    assert type(tf.nest.pack_sequence_as(state, leaves)) is type(state)


@every_state
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_states_of_parts_add_up_to_that_of_the_whole(row: MetricRow, seed: int, cuts: list[int]) -> None:
    inputs = example(row, seed=seed)
    whole = made(row, inputs)
    parts = [made(row, [x[a:b] for x in inputs]) for a, b in itertools.pairwise([0, *sorted(cuts), 30])]
    for order in (parts, parts[::-1]):
        merged = functools.reduce(metrics.merge, order)
        assert type(merged) is type(whole)
        for a, b in zip(merged, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14)
            if row.part not in MEANS:
                np.testing.assert_array_equal(a, b)


@pytest.mark.long
@every_state
def test_state_is_carried_by_a_loop_and_read_in_a_graph(row: MetricRow) -> None:
    inputs = example(row)

    def add(i: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        return i + 1, metrics.merge(state, made(row, [x[10 * i : 10 * i + 10] for x in inputs]))

    @tf.function(autograph=False)
    def accumulate() -> tuple[Any, Any]:
        empty = tf.nest.map_structure(tf.zeros_like, made(row, inputs))
        state = tf.while_loop(lambda i, _: i < 3, add, (0, empty))[1]
        return state, state.result()

    state, result = accumulate()
    assert distance(result, figures(row, inputs)) <= 1e-6
    assert distance(type(state).result(state), result) <= 1e-6


@every_state
def test_values_of_weight_zero_are_not_read(row: MetricRow) -> None:
    *inputs, weight = (x.numpy() for x in example(row))
    spoilt = [np.where(weight == 0, x, y).astype(y.dtype) for x, y in zip(row.garbage, inputs, strict=True)]
    assert distance(figures(row, [*spoilt, weight]), figures(row, [*inputs, weight])) == 0.0


@every_state
def test_empty_state_is_nan_and_adds_nothing(row: MetricRow) -> None:
    *inputs, weight = example(row)
    some = made(row, [*inputs, weight])
    for nothing in (made(row, [*inputs, tf.zeros_like(weight)]), made(row, example(row, rows=0))):
        assert all(np.isnan(x) for x in tf.nest.flatten(nothing.result()))
        assert distance(metrics.merge(some, nothing), some) == 0.0


@every_state
def test_values_without_weights_count_once(row: MetricRow) -> None:
    *inputs, weight = example(row)
    assert distance(made(row, [*inputs, None]), made(row, [*inputs, tf.ones_like(weight)])) == 0.0


@pytest.mark.long
@every_row
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_extreme_values_give_finite_figures(row: MetricRow, data: st.DataObject) -> None:
    *inputs, weight = example(row, seed=data.draw(st.integers(0, 99))) + ([] if row.state else [None])
    extremes = [0.0, 6e-8, 1.0] if row.part in ("AUC", "PrecisionRecall") else [-1e4, 0.0, 6e-8]
    extremes += [] if row.part in ("AUC", "PrecisionRecall", "Perplexity") else [1e4, 65504.0]
    chosen = np.array(data.draw(st.lists(st.sampled_from(extremes), min_size=1)))
    dtype = data.draw(st.sampled_from([tf.float32, tf.float16, tf.bfloat16]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    inputs = [tf.cast(rng.choice(chosen, x.shape), dtype) if x.dtype.is_floating else x for x in inputs]
    found = figures(row, [*inputs, weight] if row.state else inputs)
    undefined: set[str] = set()
    if row.part == "R2" and len(set(np.asarray(inputs[1], np.float64)[weight > 0])) == 1:
        undefined = {"r2"}  # the targets don't vary
    if row.part == "PrecisionRecall" and not np.any(np.asarray(inputs[0], np.float64)[weight > 0] >= 0.3):
        undefined = {"precision"}  # nothing was found
    for key, figure in found.items() if isinstance(found, dict) else [("r2", found)]:
        assert np.all(np.isnan(figure) if key in undefined else np.isfinite(figure)), key
