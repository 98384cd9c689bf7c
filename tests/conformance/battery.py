"""The checks of the conformance suite: a `Row` describes a part, and each check takes any row.

A part is a layer or a plain function of tensors. Checks compare its outputs (one tensor or several) with a peer,
between dtypes, and between eager, graph and XLA. They compare its gradients with finite differences, twice.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core.layers.calls import arguments_of
from core.random import Rng
from core.task.statistics import Statistics

Arrays = tuple[np.ndarray, ...]
RNG = Rng.from_seed(20)  # the rng that makes parts, and the one that they draw from in an example
ROWS = 3  # of an example input


def train(part: Any, *inputs: tf.Tensor) -> Any:
    """Calls the part as a training step does: with `rng` and `statistics` if it takes them."""
    given = {"rng": RNG.fold("call"), "statistics": Statistics()}
    return part(*inputs, **{name: given[name] for name in arguments_of(part)})


def evaluate(part: Any, *inputs: tf.Tensor) -> Any:
    """Calls the part as an evaluation does."""
    return part(*inputs)


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator, int], Arrays]:
    """Returns a function that makes standard normal inputs, one shape per row each."""
    return lambda rng, rows: tuple(rng.normal(size=(rows, *shape)).astype(np.float32) for shape in shapes)


LINES, IMAGES, VOLUMES = normal((7, 4)), normal((6, 7, 4)), normal((4, 5, 3, 2))
LARGER_IMAGES = normal((12, 10, 4))


@dataclasses.dataclass(frozen=True)
class Row:
    """A part with its options, an example input, and a peer that computes the same in another way."""

    part: str  # its public name
    make: Callable[[Rng], Any]
    inputs: Callable[[np.random.Generator, int], Arrays]  # for a number of rows
    peer: Callable[..., Any]  # (part, *inputs) -> what the call should return
    peer_name: str
    paper: str = ""
    case: str = ""
    call: Callable[..., Any] = train  # (part, *inputs)
    parameters: tuple[str, ...] = ()  # the paths of all its variables
    tolerance: float = 1e-5  # to the peer: of the largest value, or of one
    step: float = 1e-5  # of finite differences; larger where a part computes in float32 whatever it is given
    precision: float = 1e-6  # of finite differences
    roundings: int = 2  # that half precision may make between an input and an output, one after another

    @property
    def id(self) -> str:
        return f"{self.part}: {self.case}" if self.case else self.part

    def example(self, rows: int = ROWS, dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
        """Returns an example input of so many rows, with floats in `dtype`."""
        arrays = self.inputs(np.random.default_rng(5), rows)
        return [tf.cast(x, dtype) if x.dtype.kind == "f" else tf.constant(x) for x in arrays]


def rows_missing(module: ModuleType, rows: Sequence[Row]) -> set[str]:
    """Returns the public parts of `module` without a row."""
    return set(module.__all__) - {row.part for row in rows}


def difference(row: Row) -> float:
    """Returns the largest difference from the peer, divided by the largest value if that exceeds one."""
    part = row.make(RNG)
    ours = outputs(row.call, part, row.example())
    theirs = tf.nest.flatten(row.peer(part, *row.inputs(np.random.default_rng(5), ROWS)))
    return max(distance(a, b) for a, b in zip(ours, theirs, strict=True))


def table(rows: Sequence[Row]) -> list[tuple[str, str, str, float]]:
    """Returns (part, paper, peer, largest difference over its rows), in the order of the rows."""
    found: dict[str, tuple[str, str, str, float]] = {}
    for row in rows:
        part, paper, peer, worst = found.get(row.part, (row.part, row.paper, "", 0.0))
        peers = [*(peer.split(", ") if peer else []), row.peer_name]
        found[row.part] = (part, paper or row.paper, ", ".join(dict.fromkeys(peers)), max(worst, difference(row)))
    return list(found.values())


def distance(a: Any, b: Any) -> float:
    """Returns the largest difference, divided by the largest value if that exceeds one; shapes must agree."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, f"{a.shape} is not {b.shape}"
    if not a.size:
        return 0.0
    found = float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(b))))
    return np.inf if np.isnan(found) else found  # `max` would ignore a NaN


def outputs(call: Callable[..., Any], part: Any, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the call's outputs as a flat list."""
    return list(tf.nest.flatten(call(part, *inputs)))


def objective(ys: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a number with a gradient everywhere; a plain sum has none through a normalisation."""
    total = []
    for y in ys:
        y = tf.cast(y, tf.float32) if y.dtype.size < 4 else y
        phase = 0.7 * tf.cast(tf.reshape(tf.range(tf.size(y)), tf.shape(y)), tf.float64)
        phase = tf.math.floormod(phase, 2.0 * np.pi)  # a large phase would cost `y` digits
        total.append(tf.reduce_sum(tf.cos(y + tf.cast(phase, y.dtype))))
    return tf.add_n(total)


def sources(part: Any, inputs: Sequence[tf.Tensor]) -> list[Any]:
    """Returns what a gradient may reach: floating inputs and parameters."""
    floats = [x for x in inputs if x.dtype.is_floating]
    return [*floats, *(part.trainable_variables if isinstance(part, tf.Module) else ())]


def value_and_gradients(row: Row, part: Any, inputs: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the outputs, and the gradient of their objective by every source."""
    reached = sources(part, inputs)
    with tf.GradientTape() as tape:
        tape.watch(reached)
        ys = outputs(row.call, part, inputs)
        target = objective([y for y in ys if y.dtype.is_floating])
    gradients = tape.gradient(target, reached, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return ys, [tf.convert_to_tensor(g) for g in gradients]


def as_function(row: Row, part: Any, *, compiled: bool) -> Callable[..., Any]:
    """Returns `value_and_gradients` as a graph with an unknown number of rows, or compiled for the given rows."""
    signature = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in row.example()]
    return tf.function(
        lambda *inputs: value_and_gradients(row, part, inputs),
        input_signature=None if compiled else signature,
        jit_compile=compiled,
        autograph=False,
    )


def check_compiled(row: Row, tolerance: float) -> None:
    """Compares values and gradients in eager calls with those of one XLA program."""
    part = row.make(RNG)
    compiled = as_function(row, part, compiled=True)
    eager = tf.nest.flatten(value_and_gradients(row, part, row.example()))
    for a, b in zip(eager, tf.nest.flatten(compiled(*row.example())), strict=True):
        assert distance(b, a) <= tolerance


def in_float64(part: Any) -> Any:
    """Returns `part` with float64 variables in place of its float32 ones."""
    for module in (part, *part.submodules) if isinstance(part, tf.Module) else ():
        for name, value in list(vars(module).items()):
            if isinstance(value, tf.Variable):
                wide = tf.Variable(tf.cast(value, tf.float64), trainable=value.trainable, name=value.name.split(":")[0])
                setattr(module, name, wide)
    return part


def directions(points: Sequence[tf.Tensor], seed: int) -> list[tf.Tensor]:
    """Returns a random direction of about unit length at each point."""
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.normal(size=x.shape) / max(1.0, np.sqrt(np.prod(x.shape))), x.dtype) for x in points]


class Slope:
    """A scalar function of a part's sources in float64, and its change along a direction."""

    def __init__(self, row: Row):
        self.row, self.part = row, in_float64(row.make(RNG))
        self.inputs = row.example(dtype=tf.float64)
        self.points = [tf.convert_to_tensor(x) for x in sources(self.part, self.inputs)]
        assert self.points, f"{row.id} has nothing that a gradient reaches: compare it elsewhere"
        self.floats = sum(x.dtype.is_floating for x in self.inputs)

    def gradient(self, points: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the first derivatives at `points`."""
        return self._at(points, lambda inputs: value_and_gradients(self.row, self.part, inputs)[1])

    def value(self, points: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the objective at `points`."""

        def value(inputs: Sequence[tf.Tensor]) -> tf.Tensor:
            return objective([y for y in outputs(self.row.call, self.part, inputs) if y.dtype.is_floating])

        return self._at(points, value)

    def norm(self, points: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the squared norm of the gradient of a network with the part inside."""
        return self._at(points, self._norm)

    def penalty_gradient(self, points: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradient of `norm`, as in a gradient penalty."""

        def gradient(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            reached = sources(self.part, inputs)
            with tf.GradientTape() as tape:
                tape.watch(reached)
                norm = self._norm(inputs)
            found = tape.gradient(norm, reached, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return [tf.convert_to_tensor(g) for g in found]

        return self._at(points, gradient)

    def _norm(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        reached = sources(self.part, inputs)
        with tf.GradientTape() as tape:
            tape.watch(reached)
            bent = [tf.sin(x) + x if x.dtype.is_floating else x for x in inputs]
            ys = [y for y in outputs(self.row.call, self.part, bent) if y.dtype.is_floating]
            target = tf.add_n([tf.reduce_sum(tf.square(tf.tanh(y))) for y in ys]) + objective(ys)
        first = tape.gradient(target, reached, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        first = [tf.convert_to_tensor(g) for g in first]
        return dot(first, first)

    def _at(self, points: Sequence[tf.Tensor], fn: Callable[[Sequence[tf.Tensor]], Any]) -> Any:
        moved = iter(points[: self.floats])
        inputs = [next(moved) if x.dtype.is_floating else x for x in self.inputs]
        for variable, value in zip(sources(self.part, self.inputs)[self.floats :], points[self.floats :], strict=True):
            variable.assign(value)
        return fn(inputs)


def penalty_is_off_by(slope: Slope) -> float:
    """Returns the error of a penalty's gradient against finite differences along itself, relative to its length.

    Along the gradient itself any missing part shows; a random direction hides most of a curvature.
    """
    gradient = slope.penalty_gradient(slope.points)
    length = float(tf.sqrt(dot(gradient, gradient)))
    assert length > 0.0, f"{slope.row.id} passes nothing on of a penalty"
    along = dict(enumerate(g / length for g in gradient))
    step = slope.row.step

    def change(h: float) -> float:
        return float(slope.norm(moved(slope.points, along, h)) - slope.norm(moved(slope.points, along, -h)))

    if step <= Row.step:
        measured = change(step) / (2.0 * step)
    else:  # large enough for the part's rounding, so the difference is of fourth order
        measured = (8.0 * change(step) - change(2.0 * step)) / (12.0 * step)
    return abs(measured / length - 1.0)


def check_first_derivatives(slope: Slope) -> None:
    """Compares the gradient with finite differences, in one random direction of all sources."""
    row, ways = slope.row, directions(slope.points, seed=1)
    ahead, behind = (slope.value(moved(slope.points, dict(enumerate(ways)), sign * row.step)) for sign in (1, -1))
    measured = float(ahead - behind) / (2.0 * row.step)
    found = float(dot(slope.gradient(slope.points), ways))
    assert found == pytest.approx(measured, rel=row.precision, abs=row.precision)


def dot(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the inner product of two lists of tensors."""
    return tf.add_n([tf.reduce_sum(x * y) for x, y in zip(a, b, strict=True)])


def moved(points: Sequence[tf.Tensor], along: Mapping[int, tf.Tensor], step: float) -> list[tf.Tensor]:
    """Returns `points` with some of them moved."""
    return [x + step * along[i] if i in along else x for i, x in enumerate(points)]
