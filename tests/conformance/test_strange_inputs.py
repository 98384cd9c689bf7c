"""Every public layer, loss and metric with NumPy arrays, and with shapes that aren't known while tracing.

Each either computes what it does of plain tensors, or says whose argument it is, what it got and what to do.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import core

from . import battery
from .battery import RNG, Arrays
from .layer_rows import ROWS_OF_LAYERS
from .loss_rows import ROWS_OF_LOSSES
from .metric_rows import ROWS_OF_METRICS

CORE = Path(core.__file__).parent
ROWS = 6
TABLES: tuple[Sequence[Any], ...] = (ROWS_OF_LAYERS, ROWS_OF_LOSSES, ROWS_OF_METRICS)
FIRST_ROWS = [row for rows in TABLES for row in {row.part: row for row in reversed(rows)}.values()]
WANTED = {
    "an array": r"^`\w+` of `[\w ]+` is of type ndarray; give a tensor: `tf\.constant\(",
    "unknown sizes": r"^`\w+`( of .+)? has shape .*tf\.ensure_shape",
    "an unknown shape": r"^`\w+`( of .+)? has (a )?shape .*tf\.ensure_shape",
}


def called(row: Any) -> tuple[Callable[..., list[Any]], Arrays]:
    """A call of the part, and arrays for it."""
    part, arrays = row.make(RNG), row.inputs(np.random.default_rng(5), ROWS)
    if row in ROWS_OF_METRICS:
        return lambda *xs: tf.nest.flatten(part(*xs)), arrays
    return lambda *xs: battery.outputs(row.call, part, xs), arrays


@pytest.mark.parametrize("what", WANTED)
@pytest.mark.parametrize("row", FIRST_ROWS, ids=lambda row: row.part)
def test_computes_the_same_or_says_what_to_do(row: Any, what: str) -> None:
    call, arrays = called(row)
    tensors = [tf.constant(x) for x in arrays]
    shapes = {"unknown sizes": [[None] * x.ndim for x in arrays], "an unknown shape": [None] * len(arrays)}
    refusal = None
    try:
        if what == "an array":
            found = call(*arrays)
        else:
            specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes[what], tensors, strict=True)]
            found = tf.function(call, input_signature=specs, autograph=False)(*tensors)
    except (TypeError, ValueError) as error:
        refusal = error
    if refusal:
        assert re.search(WANTED[what], str(refusal))
        assert CORE in Path(traceback.extract_tb(refusal.__traceback__)[-1].filename).parents
        return
    for a, b in zip(found, call(*tensors), strict=True):
        assert battery.distance(a, b) <= 1e-6


@pytest.mark.parametrize("row", [row for row in FIRST_ROWS if row in ROWS_OF_LAYERS], ids=lambda row: row.part)
def test_a_layer_of_whole_numbers_computes_as_of_floats_or_asks_for_these(row: Any) -> None:
    """Weights that were cast to the dtype of pixels would be zeros, and nobody the wiser."""
    call, arrays = called(row)
    whole = [np.rint(3 * x).astype(np.int32) if x.dtype.kind == "f" else x for x in arrays]
    floats = [tf.constant(x.astype(y.dtype)) for x, y in zip(whole, arrays, strict=True)]
    refusal = None
    try:
        found = call(*map(tf.constant, whole))
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert re.search(r"^`\w+` of `[\w ]+` (is|are) int32; give floats: `tf\.cast\(\w+, tf\.float32\)`", refusal)
        return
    for a, b in zip(found, call(*floats), strict=True):
        assert battery.distance(tf.cast(a, b.dtype), b) <= 1e-6


@pytest.mark.parametrize("part", ["attend", "Bilinear"])
def test_inputs_of_two_dtypes_are_told_apart(part: str) -> None:
    call, arrays = called(next(row for row in FIRST_ROWS if row.part == part))
    first, second, *rest = map(tf.constant, arrays)
    with pytest.raises(ValueError, match=r"^`\w+` of `\w+` is float64, and `\w+` float32; give both in one dtype: `tf"):
        call(first, tf.cast(second, tf.float64), *rest)


def test_which_of_two_inputs_is_wrong_is_said() -> None:
    call, arrays = called(next(row for row in FIRST_ROWS if row.part == "Bilinear"))
    left, right = map(tf.constant, arrays)
    with pytest.raises(ValueError, match=r"^`right` of `Bilinear` has shape .*`right_size=\d+`; make it with"):
        call(left, right[..., :-1])
    with pytest.raises(ValueError, match=r"^`left` of `Bilinear` is int64; give floats: `tf\.cast\(left, "):
        call(tf.cast(left, tf.int64), right)
