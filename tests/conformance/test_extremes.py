"""Layers where inputs are extreme, against their definition in float64."""

import numpy as np
import pytest
import tensorflow as tf

from . import battery
from .battery import RNG, Row
from .extreme_rows import EXTREME_ROWS

every_row = pytest.mark.parametrize("row", EXTREME_ROWS, ids=lambda row: row.id)


def gap(found: tf.Tensor, expected: tf.Tensor) -> float:
    """As `battery.distance`, where a NaN, or an infinity, is right if both have it."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    same = np.isnan(found) & np.isnan(expected) | (found == expected)
    return battery.distance(np.where(same, 0.0, found), np.where(same, 0.0, expected))


@every_row
def test_outputs_and_gradients_are_those_of_float64(row: Row) -> None:
    narrow, wide = row.make(RNG), battery.in_float64(row.make(RNG))
    expected = tf.nest.flatten(row.peer(narrow, *row.inputs(np.random.default_rng(5), battery.ROWS)))
    ys, gradients = battery.value_and_gradients(row, narrow, row.example())
    compiled = tf.function(lambda *xs: battery.outputs(row.call, narrow, xs), jit_compile=True, autograph=False)
    for found in (ys, compiled(*row.example())):
        for y, z in zip(found, expected, strict=True):
            assert gap(y, z) <= row.tolerance
    exact = battery.value_and_gradients(row, wide, row.example(dtype=tf.float64))[1]
    for gradient, z in zip(gradients, exact, strict=True):
        assert gap(gradient, z) <= 10.0 * row.tolerance
