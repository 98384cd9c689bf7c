"""Layers, losses and metrics with NumPy arrays, shapes unknown while tracing, and integers for floats.

The tables record which parts compute the same as with plain tensors. All others raise an error that names the argument,
its value and the next action.
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
LAYERS = {row.part for row in ROWS_OF_LAYERS}

ARRAY, SIZES, SHAPE, INTEGERS = "an array", "unknown sizes", "an unknown shape", "integers"
WORDS = {
    ARRAY: r"is of type ndarray; give a tensor: `tf\.constant\(",
    SIZES: r"has shape .*tf\.ensure_shape",
    SHAPE: r"has (a )?shape .*tf\.ensure_shape",
    INTEGERS: r"(is|are) int32; give floats: `tf\.cast\(\w+, tf\.float32\)`",
}
POOLS = {"AveragePool", "MaxPool", "global_average_pool", "global_max_pool"}
LAYERS_THAT_COMPUTE = {
    ARRAY: set(),
    SIZES: {"Embedding", "Pad", "Resize", "StochasticDepth", "gelu", *POOLS},
    SHAPE: {"gelu"},
    # Weights cast to the dtype of pixels would be zeros: only parts without arithmetic take integers.
    INTEGERS: {"Embedding", "MaxPool", "Pad", "PixelShuffle", "flatten", "global_max_pool"},
}
OTHERS_THAT_RAISE = {("Frechet", SHAPE), ("ssim", SIZES), ("ssim", SHAPE)}
# The argument that an error names, unless it is the part's `x`.
NAMED: dict[Any, str] = {
    "attend": "`q` of `attend`",
    "Bilinear": "`left` of `Bilinear`",
    "Embedding": "`ids` of `Embedding`",
    "Frechet": "`real`",
    "ssim": "`images` of `ssim`",
    "unroll": "`x` of `GRU`",
    "SeparableConv2D": "`x` of `DepthwiseConv2D`",
    "RotaryScaling": "`x` of `rotary`",
    **dict.fromkeys(("recompute", "Residual", "Sequential", "SpectralNorm", "WeightNorm"), "`x` of `Linear`"),
    **dict.fromkeys((("MultiHeadAttention", SIZES), ("MultiHeadAttention", INTEGERS)), "`x` of `Linear`"),
    **dict.fromkeys(("global_average_pool", "global_max_pool"), "`x` of `global pool`"),
    **dict.fromkeys((("Dropout", SIZES), ("SpatialDropout", SIZES)), "`x` of a dropout"),
}


def computes(row: Any, what: str) -> bool:
    return row.part in LAYERS_THAT_COMPUTE[what] if row.part in LAYERS else (row.part, what) not in OTHERS_THAT_RAISE


CASES = [(row, what) for row in FIRST_ROWS for what in WORDS if what != INTEGERS or row.part in LAYERS]
# A shape that is unknown has unknown sizes.
SAME = [(row, what) for row, what in CASES if computes(row, what) and not (what == SIZES and computes(row, SHAPE))]
RAISING = [case for case in CASES if not computes(*case)]


def name(value: Any) -> str:
    return value if isinstance(value, str) else value.part


def called(row: Any) -> tuple[Callable[..., list[Any]], Arrays]:
    """Returns a call of the part, and arrays for it."""
    part, arrays = row.make(RNG), row.inputs(np.random.default_rng(5), ROWS)
    if row in ROWS_OF_METRICS:
        return lambda *xs: tf.nest.flatten(part(*xs)), arrays
    return lambda *xs: battery.outputs(row.call, part, xs), arrays


def strange(row: Any, what: str) -> tuple[Callable[[], list[Any]], Callable[[], list[Any]]]:
    """Returns a call of the part with such inputs, and one with plain tensors of the same numbers."""
    call, arrays = called(row)
    if what == INTEGERS:
        whole = [np.rint(3 * x).astype(np.int32) if x.dtype.kind == "f" else x for x in arrays]
        floats = [tf.constant(x.astype(y.dtype)) for x, y in zip(whole, arrays, strict=True)]
        return lambda: call(*map(tf.constant, whole)), lambda: call(*floats)
    tensors = [tf.constant(x) for x in arrays]
    if what == ARRAY:
        return lambda: call(*arrays), lambda: call(*tensors)
    shapes = [[None] * x.ndim if what == SIZES else None for x in arrays]
    specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, tensors, strict=True)]
    return lambda: tf.function(call, input_signature=specs, autograph=False)(*tensors), lambda: call(*tensors)


@pytest.mark.parametrize(("row", "what"), SAME, ids=name)
def test_strange_input_gives_the_same_as_a_plain_one(row: Any, what: str) -> None:
    found, plain = (call() for call in strange(row, what))
    for a, b in zip(found, plain, strict=True):
        assert battery.distance(tf.cast(a, b.dtype), b) <= 1e-6
        assert what == INTEGERS or a.dtype == b.dtype


@pytest.mark.parametrize(("row", "what"), RAISING, ids=name)
def test_strange_input_raises_an_error_that_names_it(row: Any, what: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        strange(row, what)[0]()
    named = NAMED.get((row.part, what), NAMED.get(row.part, f"`x` of `{row.part}`"))
    assert re.search(f"^{named} {WORDS[what]}", str(raised.value))
    assert CORE in Path(traceback.extract_tb(raised.value.__traceback__)[-1].filename).parents


@pytest.mark.parametrize("part", ["attend", "Bilinear"])
def test_inputs_of_two_dtypes_are_named(part: str) -> None:
    call, arrays = called(next(row for row in FIRST_ROWS if row.part == part))
    first, second, *rest = map(tf.constant, arrays)
    with pytest.raises(ValueError, match=r"^`\w+` of `\w+` is float64, and `\w+` float32; give both in one dtype: `tf"):
        call(first, tf.cast(second, tf.float64), *rest)


def test_bilinear_names_the_wrong_one_of_two_inputs() -> None:
    call, arrays = called(next(row for row in FIRST_ROWS if row.part == "Bilinear"))
    left, right = map(tf.constant, arrays)
    with pytest.raises(ValueError, match=r"^`right` of `Bilinear` has shape .*`right_size=\d+`; make it with"):
        call(left, right[..., :-1])
    with pytest.raises(ValueError, match=r"^`left` of `Bilinear` is int64; give floats: `tf\.cast\(left, "):
        call(tf.cast(left, tf.int64), right)
