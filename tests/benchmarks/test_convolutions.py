"""Gradients of convolutions in `benchmarks.convolutions`: all compute the same, and a wrong one is named."""

import pytest
import tensorflow as tf

from benchmarks import convolutions


@pytest.mark.parametrize("shape", [(2, 8, 3, 4, 3), (1, 6, 4, 2, 1)])
def test_row_has_the_time_of_each_form_and_of_the_rule(shape):
    row = convolutions.row_of(convolutions.Shape(*shape), pairs=2)
    assert len(row) == len(convolutions.HEAD)
    assert row[0].startswith(f"{shape[0]}, {shape[1]}×{shape[1]}, ")
    assert all(float(cell) > 0.0 for cell in row[1:6])


def test_form_that_computes_something_else_is_named(monkeypatch):
    monkeypatch.setitem(convolutions.FORMS, "patches", lambda x, w: tf.nn.conv2d(2.0 * x, w, 1, "SAME"))
    with pytest.raises(AssertionError, match="patches"):
        convolutions.row_of(convolutions.Shape(1, 6, 2, 2, 3), pairs=1)
