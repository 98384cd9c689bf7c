"""All checks of every public layer; `-k Conv2D` runs those of one."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.module import named_variables
from core.random import Rng

from . import battery
from .battery import RNG, ROWS, Row, evaluate
from .layer_rows import ROWS_OF_LAYERS

# One row per part has all checks. Cases of a part differ in arithmetic, which graph, XLA and checkpoints don't depend
# on.
FIRST_ROWS = list({row.part: row for row in reversed(ROWS_OF_LAYERS)}.values())[::-1]

every_row = pytest.mark.parametrize("row", ROWS_OF_LAYERS, ids=lambda row: row.id)
first_rows = pytest.mark.parametrize("row", FIRST_ROWS, ids=lambda row: row.id)


def test_every_public_layer_has_a_row() -> None:
    assert battery.rows_missing(layers, ROWS_OF_LAYERS) == set()


@every_row
def test_agrees_with_its_peer(row: Row) -> None:
    assert battery.difference(row) <= row.tolerance


@pytest.mark.long
@every_row
def test_gradients_agree_with_finite_differences_and_a_penalty_is_whole(row: Row) -> None:
    slope = battery.Slope(row)
    battery.check_first_derivatives(slope)
    assert battery.penalty_is_off_by(slope) <= 10.0 * row.precision


@pytest.mark.long
@first_rows
def test_eager_and_graph_agree_for_any_number_of_rows(row: Row) -> None:
    part = row.make(RNG)
    graph = battery.as_function(row, part, compiled=False)
    shapes: list[Any] = []
    for rows in (ROWS, 0):
        ys, gradients = battery.value_and_gradients(row, part, row.example(rows))
        for a, b in zip([*ys, *gradients], tf.nest.flatten(graph(*row.example(rows))), strict=True):
            # The same kernels; a graph may order a sum of gradients in another way.
            assert battery.distance(b, a) <= 1e-5
            assert np.isfinite(a).all()
        shapes.append([y.shape[1:] for y in ys])
    assert shapes[1] == shapes[0]  # those of no rows, whose gradients are zero
    assert not any(np.any(gradient) for gradient in gradients)
    assert graph.experimental_get_tracing_count() == 1


# tests/core/layers/test_layers_under_xla.py compares two derivatives of the others.
COMPILED = [
    row for row in FIRST_ROWS if row.part not in {"LayerNorm", "MaxPool", "MultiHeadAttention", "RMSNorm", "gelu"}
]
# Each way to combine rows with weights, and each that divides by their number.
EMPTY_IN_XLA = {"BatchNorm", "Conv2D", "ConvTranspose2D", "Embedding", "GRU", "Linear", "MaxPool", "Resize", "attend"}
# Second derivatives of a loop take long to trace: `unroll` is one core in a graph.
EMPTY = [("eager" if row.part in {"GRU", "LSTM", "VanillaRNN"} else "graph", row) for row in FIRST_ROWS]
EMPTY += [("xla", row) for row in FIRST_ROWS if row.part in EMPTY_IN_XLA]


@pytest.mark.long
@pytest.mark.parametrize("row", COMPILED, ids=lambda row: row.id)
def test_eager_and_xla_agree(row: Row) -> None:
    # Other kernels: XLA fuses, contracts to multiply-adds and approximates tanh and exp itself.
    battery.check_compiled(row, 3e-5)


@pytest.mark.long  # a graph of any number of rows, zero included, is compared with eager calls above
@pytest.mark.parametrize(("mode", "row"), EMPTY, ids=lambda x: getattr(x, "id", x))
def test_no_rows_have_the_shapes_of_one_and_gradients_of_zero(mode: str, row: Row) -> None:
    part, none = row.make(RNG), row.example(0)
    shapes = [[0, *y.shape[1:]] for y in battery.outputs(row.call, part, row.example(1))]

    def derivatives(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        reached = battery.sources(part, inputs)
        with tf.GradientTape() as tape:
            tape.watch(reached)
            ys, first = battery.value_and_gradients(row, part, inputs)
            slope = battery.dot(first, first)
        second = tape.gradient(slope, reached, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return ys, first, [tf.convert_to_tensor(g) for g in second]

    def gradient(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return battery.value_and_gradients(row, part, inputs)

    any_rows = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in none]
    call = {
        "eager": derivatives,
        "graph": tf.function(derivatives, autograph=False, input_signature=any_rows),
        "xla": tf.function(gradient, autograph=False, jit_compile=True),  # of shapes that are known
    }[mode]
    ys, *gradients = call(*none)
    assert [y.shape for y in ys] == shapes
    for found in gradients:
        for source, gradient_of in zip(battery.sources(part, none), found, strict=True):
            np.testing.assert_array_equal(gradient_of, tf.zeros(source.shape))


@pytest.mark.long
@first_rows
def test_same_rng_gives_the_same_bits_and_another_others(row: Row) -> None:
    first, again, other = (row.make(rng) for rng in (RNG, RNG, Rng.from_seed(21)))
    pairs = zip(*(variables(part).items() for part in (first, again, other)), strict=True)
    differs = False
    for (_, a), (_, b), (_, c) in pairs:
        np.testing.assert_array_equal(a, b)
        differs = differs or not np.array_equal(a, c)
    assert differs or "rng" not in inspect.signature(type(first).__init__).parameters
    for a, b in zip(*(battery.outputs(row.call, part, row.example()) for part in (first, again)), strict=True):
        np.testing.assert_array_equal(a, b)


@first_rows
def test_variables_go_by_their_paths(row: Row) -> None:
    found = variables(row.make(RNG))
    assert tuple(found) == row.parameters
    for path, variable in found.items():
        assert variable.dtype == tf.float32
        assert variable.name.split(":")[0] == path.split("/")[-1]


def variables(part: Any) -> dict[str, tf.Variable]:
    return named_variables(part) if isinstance(part, tf.Module) else {}


@dataclasses.dataclass
class Shelf:
    """One part per row, together: checkpoints and SavedModels are made once for all."""

    parts: list[Any]
    module: tf.Module

    @classmethod
    def of(cls, rng: Rng) -> "Shelf":
        parts = [row.make(rng) for row in FIRST_ROWS]
        module = tf.Module()
        module.parts = [part for part in parts if isinstance(part, tf.Module)]
        return cls(parts, module)


@pytest.mark.long
def test_checkpoints_round_trip(tmp_path: Path) -> None:
    saved, restored = Shelf.of(RNG), Shelf.of(Rng.from_seed(21))
    path = tf.train.Checkpoint(root=saved.module).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(root=restored.module).restore(path).assert_consumed().assert_existing_objects_matched()
    for row, ours, theirs in zip(FIRST_ROWS, saved.parts, restored.parts, strict=True):
        for path, variable in variables(ours).items():
            np.testing.assert_array_equal(variable, variables(theirs)[path], err_msg=f"{row.id} {path}")


@pytest.mark.long  # tests/trainers/test_export_onnx.py exports models of most of them
def test_saved_models_round_trip(tmp_path: Path) -> None:
    """Exports parts without variables as graphs of any number of rows, as above."""
    shelf = Shelf.of(RNG)
    pairs = [(row, part) for row, part in zip(FIRST_ROWS, shelf.parts, strict=True) if variables(part)]
    calls = [serve(row, part) for row, part in pairs]
    for i, call in enumerate(calls):
        setattr(shelf.module, f"call_{i}", call)
    tf.saved_model.save(shelf.module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for i, (row, part) in enumerate(pairs):
        inputs = row.example(2 * ROWS)
        ours, theirs = battery.outputs(evaluated(row), part, inputs), getattr(loaded, f"call_{i}")(*inputs)
        for a, b in zip(ours, tf.nest.flatten(theirs), strict=True):
            assert battery.distance(b, a) <= 1e-6, row.id


def serve(row: Row, part: Any) -> Callable[..., Any]:
    signature = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in row.example()]
    return tf.function(lambda *inputs: evaluated(row)(part, *inputs), input_signature=signature, autograph=False)


def evaluated(row: Row) -> Callable[..., Any]:
    """Calls the row as an evaluation does."""
    return evaluate if row.call is battery.train else row.call
