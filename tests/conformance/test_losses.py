"""All checks of every public loss."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core import losses
from core.task import Loss
from core.task.loss import weighted_sums

from . import battery
from .battery import RNG, ROWS, Row
from .loss_rows import ROWS_OF_LOSSES, distributed

FIRST_ROWS = list({row.part: row for row in reversed(ROWS_OF_LOSSES)}.values())[::-1]
DIFFERENTIABLE = [row for row in ROWS_OF_LOSSES if any(x.dtype.is_floating for x in row.example())]

every_row = pytest.mark.parametrize("row", ROWS_OF_LOSSES, ids=lambda row: row.id)
every_loss = pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.id)
first_rows = pytest.mark.parametrize("row", FIRST_ROWS, ids=lambda row: row.id)


def values(row: Row, inputs: list[tf.Tensor]) -> tf.Tensor:
    (loss,) = battery.outputs(row.call, row.make(RNG), inputs)
    return loss


def test_every_public_loss_has_a_row() -> None:
    assert battery.rows_missing(losses, ROWS_OF_LOSSES) == set()
    assert {row.part for row in ROWS_OF_LOSSES} == set(losses.__all__)


@every_row
def test_agrees_with_its_peer(row: Row) -> None:
    assert battery.difference(row) <= row.tolerance


@pytest.mark.long
@every_loss
def test_gradients_agree_with_finite_differences_and_a_penalty_is_whole(row: Row) -> None:
    slope = battery.Slope(row)
    battery.check_first_derivatives(slope)
    assert battery.penalty_is_off_by(slope) <= 20.0 * row.precision


@pytest.mark.long
@first_rows
def test_eager_and_graph_agree_for_any_number_of_rows(row: Row) -> None:
    part = row.make(RNG)
    graph = battery.as_function(row, part, compiled=False)
    for rows in (ROWS, 0):
        eager = tf.nest.flatten(battery.value_and_gradients(row, part, row.example(rows)))
        for a, b in zip(eager, tf.nest.flatten(graph(*row.example(rows))), strict=True):
            assert battery.distance(b, a) <= 1e-6
    assert graph.experimental_get_tracing_count() == 1


@pytest.mark.long
@first_rows
def test_eager_and_xla_agree(row: Row) -> None:
    battery.check_compiled(row, 2e-6)


@every_row
def test_gives_one_value_per_example_that_depends_on_that_example(row: Row) -> None:
    inputs = row.example(4)
    together = values(row, inputs)
    assert together.shape[0] == 4
    if row.part not in ("info_nce", "nt_xent"):  # which are about the other examples
        alone = [values(row, [x[i : i + 1] for x in inputs]) for i in range(4)]
        assert battery.distance(together, tf.concat(alone, axis=0)) <= 1e-6


@pytest.mark.parametrize(
    "row",
    [row for row in DIFFERENTIABLE if row.part not in ("info_nce", "nt_xent") and row.example()[1].dtype.is_floating],
    ids=lambda row: row.id,
)
def test_target_that_is_not_finite_passes_on_no_gradient_where_the_weight_is_zero(row: Row) -> None:
    check_unread_targets(partial(row.call, row.make(RNG)), row.example(4), (np.inf, -np.inf, np.nan))


@pytest.mark.parametrize("call", [losses.sigmoid_cross_entropy, losses.focal, losses.hinge, losses.dice])
def test_answer_out_of_range_passes_on_no_gradient_where_the_weight_is_zero(call) -> None:
    rng = np.random.default_rng(0)
    inputs = [tf.constant(rng.normal(size=[4, 6]), tf.float32), tf.constant(rng.integers(0, 2, [4, 6]), tf.float32)]
    check_unread_targets(call, inputs, (np.inf, np.nan, 7.0))


def check_unread_targets(call, inputs, values) -> None:
    """Asserts that no value of a target whose loss has weight zero changes the gradients."""

    def gradients(first):
        handed = [np.array(x) for x in inputs]
        for x in handed[1:]:
            x.flat[0] = first
        handed = [tf.constant(x) for x in handed]
        with tf.GradientTape() as tape:
            tape.watch(handed)
            loss = call(*handed)
            weight = tf.concat([tf.zeros_like(loss[:1]), tf.ones_like(loss[1:])], 0)
            objective, _ = weighted_sums(Loss(loss, weight))
        return tape.gradient(objective, handed, unconnected_gradients="zero")

    expected = gradients(1.0)
    for value in values:
        for found, one in zip(gradients(value), expected, strict=True):
            np.testing.assert_array_equal(found, one)


@every_loss
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_extreme_values_stay_finite(row: Row, data: st.DataObject) -> None:
    inputs = row.example(data.draw(st.integers(1, 3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    chosen = np.array(data.draw(st.lists(st.sampled_from([-1e4, -1.0, 0.0, 1e4, 65504.0]), min_size=1, max_size=4)))
    dtype = data.draw(st.sampled_from([tf.float32, tf.float16, tf.bfloat16]))
    probabilities = row.inputs is distributed  # these stay: the second input
    for i, x in enumerate(inputs):
        if x.dtype.is_floating and not (probabilities and i):
            inputs[i] = tf.cast(rng.choice(chosen, x.shape), dtype)
    loss = values(row, inputs)
    assert np.all(np.isfinite(loss))
    assert np.all(loss >= -1e-3)
    # The gradient of a square may exceed float16; in float32 it must not.
    full = [tf.cast(x, tf.float32) if x.dtype.is_floating else x for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(full)
        loss = values(row, full)
    gradients = tape.gradient(loss, battery.sources(None, full))
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
