"""Traces each step function once before the first step, to find what it reads and returns.

A mistake raises an error that names the phase, for example a scalar loss or a variable made in the step.
"""

import contextlib
import contextvars
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.casts import Cast, noticing_casts
from core.engine.dataflow import Ancestry, ancestries
from core.engine.draws import draws_twice, folds_for_nothing
from core.engine.hints import Python, detours, fixed_draws, owner, squashed_twice
from core.engine.noise_scale import NoiseScale
from core.engine.side_effects import python_calls, refuse_side_effects
from core.errors import ConfigurationError
from core.graphs import functions_of, graphs_of
from core.layers.dropout import noticing_calls
from core.precision import AS_GIVEN, Narrowing, widened
from core.random import Moment, Rng, noticing_draws
from core.rows import sharing_rows
from core.task.guards import no_mixed_dtypes, no_new_variables, no_rng_in_evaluation, no_synchronisation
from core.task.inputs import Inputs
from core.task.loss import (
    EVALUATE,
    GRADIENT_NORM,
    NOISE_SCALE,
    OVERFLOWED,
    Batch,
    Loss,
    Overflowed,
    checked,
    subject,
    weighted_sums,
)
from core.task.statistics import Averages, noticing_averages, summing_over_replicas
from core.tracing import no_python_values

Specs = Mapping[str, tf.TensorSpec]
_CONVOLUTION = re.compile("Conv[23]D|DepthwiseConv2d")


class Access(NamedTuple):
    """The batch features, variables, averages and random numbers that one step function uses."""

    reads: frozenset[str]  # of its batch
    shapes_only: frozenset[str]  # of those, inputs of which it uses only the shape
    variables: tuple[tf.Variable, ...]  # the trainable ones
    mixes: bool  # whether it gathered the rows of all replicas, or one of its layers summed over them
    progress: bool  # whether it reads `rng.progress`
    averages: Mapping[Any, Averages]  # by reference, with the layers that normalised over the batch
    ancestries: Mapping[str, Ancestry]  # the dependencies of each output
    keeps: frozenset[Any] = frozenset()  # references of the variables whose next values a history returns
    convolves: bool = False
    loops: bool = False  # whether it convolves in its own loop
    python: tuple[str, ...] = ()  # warnings about its calls of Python
    draws: tuple[str, ...] = ()  # warnings about its random numbers
    casts: tuple[Cast, ...] = ()  # of variables, by layers
    without_rng: tuple[Any, ...] = ()  # dropout layers that never got an `rng`


@dataclasses.dataclass(frozen=True)
class LossSpec:
    """The shapes and dtypes of the `Loss` that one phase returns."""

    sums: Any  # a nest of specs
    weighted: bool
    outputs: Specs
    statistics: Any  # a nest of specs
    moves: frozenset[Any]  # references of the averages that these update
    access: Access
    values: int | None = None  # the size of `per_example`
    scaled: bool = False  # whether training scales the loss
    noise_scale: bool = False  # whether training measures the gradient noise scale

    @property
    def sums_of_update(self) -> Any:
        """Returns the specs of `sums`, and of what training adds: gradient norms, overflowed steps, noise scale."""
        scalar = tf.TensorSpec([])
        overflowed = {OVERFLOWED: Overflowed(scalar, scalar)} if self.scaled else {}
        noise = {NOISE_SCALE: NoiseScale(scalar, scalar)} if self.noise_scale else {}
        return {**self.sums, GRADIENT_NORM: scalar, **overflowed, **noise}

    def zero_sums(self) -> dict[str, Any]:
        """Returns zeros in the structure of a microbatch's sums, to start a summation."""
        return dict(zeros({**self.sums, **({NOISE_SCALE: tf.TensorSpec([])} if self.noise_scale else {})}))


def describe_loss(
    loss: Callable[[Batch, Rng], Loss],
    batch: Specs,
    name: str,
    elsewhere: Mapping[str, str] = {},
    *,
    mixes_rows: bool = True,
    replicas: int = 1,
    held: Mapping[int, str] | None = None,
    narrowing: Narrowing = AS_GIVEN,
) -> LossSpec:
    """Returns the structure of `loss(batch, rng)` for batches `[rows, ...]` of these specs, cast by `narrowing`.

    `elsewhere` maps the keys of unavailable values to reasons, for errors. Without `mixes_rows`, `loss` may not gather
    rows of the other replicas, nor call a layer that sums over replicas. `replicas` share a batch. `held` is
    `{id of a variable: path}`: `loss` may read only these variables, and have no side effects.
    """
    rows = next(iter(batch.values())).shape[0]

    weighted, moves, values = False, set[Any](), None

    def traced(b: Batch, rng: Rng) -> Any:
        nonlocal weighted, values
        result = checked(loss(b, rng), name, rows)
        weighted, values = result.weight is not None, result.per_example.shape.num_elements()
        statistics = widened(dict(result.statistics.sums)) if result.statistics else {}
        moves.update(result.statistics.averages() if result.statistics else ())
        return dict(result.outputs), weighted_sums(result)[1], statistics

    python = Python(owner(loss))
    trace = functools.partial(_trace, traced, narrowing.specs(batch), name, elsewhere, mixes_rows, replicas, held)
    (outputs, sums, statistics), access = trace(python, narrowing)
    outputs = _by_row(_specs(outputs), rows, name)
    return LossSpec(_specs(sums), weighted, outputs, _specs(statistics), frozenset(moves), access, values)


def describe_outputs(
    fn: Callable[[Batch, Rng], Any],
    batch: Specs,
    name: str,
    elsewhere: Mapping[str, str] = {},
    *,
    mixes_rows: bool = True,
    replicas: int = 1,
    history: bool = False,
    held: Mapping[int, str] | None = None,
    narrowing: Narrowing = AS_GIVEN,
) -> tuple[Specs, Access]:
    """Returns the specs of the outputs of `fn(batch, rng)`, and its `Access`. For arguments see `describe_loss`."""
    rows = next(iter(batch.values())).shape[0]

    keeps = set[Any]()

    def traced(b: Batch, rng: Rng) -> Any:
        made, kept = fn(b, rng) if history else (fn(b, rng), {})
        keeps.update(kept)
        return dict(made), list(kept.values())  # values that are only kept count as read too

    trace = functools.partial(_trace, traced, narrowing.specs(batch), name, elsewhere, mixes_rows, replicas, held)
    (outputs, _), access = trace(Python(owner(fn)), narrowing)
    return _by_row(_specs(outputs), rows, name), access._replace(keeps=frozenset(keeps))


def _by_row(outputs: Specs, rows: int | None, name: str) -> Specs:
    for key, spec in outputs.items():
        if rows is not None and (spec.shape.rank == 0 or spec.shape[0] != rows):
            raise ConfigurationError(
                f"phase `{name}` makes `{key}` of shape {spec.shape} from {rows} rows; what later phases read has one "
                "row for each of the batch: `[rows, ...]`. Report a single number as a metric of a `Loss` instead."
            )
    return outputs


def microbatch_specs(values: Batch) -> Specs:
    """Returns `{key: spec of [rows, ...]}` for one microbatch of `values` [microbatches, rows, ...]."""
    return {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in values.items()}


def zeros(specs: Any) -> Any:
    """Returns zeros with the structure of the nest `specs`."""
    return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)


def _specs(nest: Any) -> Any:
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), nest)


def _trace(
    fn: Callable[[Batch, Rng], Any],  # returns its outputs first
    batch: Specs,
    name: str,
    elsewhere: Mapping[str, str],
    mixes_rows: bool,
    replicas: int,
    held: Mapping[int, str] | None,
    before: Python,
    narrowing: Narrowing,
) -> tuple[Any, Access]:
    seed, read, variables = Rng.from_seed(0), set[str](), list[tf.Variable]()
    unused, asks_progress, convolves, loops, seen = set[str](), False, False, False, _Mixing(replicas)
    python, draws, dtypes = list[str](), list[str](), {spec.dtype for spec in batch.values()}

    def noticed(b: Batch, step: tf.Tensor, progress: tf.Tensor) -> Any:
        rng = seed._replace(moment=Moment(step, progress=progress), dtype=narrowing.dtype)
        with narrowing.computing(), no_mixed_dtypes(who, narrowing.dtype), tf.GradientTape() as tape:
            result = fn(Inputs(b, name, elsewhere, read), rng)
        variables.extend(tape.watched_variables())
        return result

    alone = seen.noted() if mixes_rows else no_synchronisation(name)
    without_rng = no_rng_in_evaluation() if name == EVALUATE else contextlib.nullcontext()
    who, casts = subject(name), noticing_casts()
    with (
        no_new_variables(who),
        alone,
        noticing_averages() as averages,
        without_rng,
        noticing_calls() as calls,
        casts as cast,
    ):
        if _untraced.get():
            shapes = {key: [1 if size is None else size for size in spec.shape] for key, spec in batch.items()}
            values = {key: tf.zeros(shapes[key], spec.dtype) for key, spec in batch.items()}
            result = noticed(values, tf.constant(0, tf.int64), tf.constant(0.0))
            everything = Ancestry(frozenset(read), tuple(variables))  # there is no graph to follow
            found = dict.fromkeys(result[0], everything)
        else:
            moment = (tf.TensorSpec([], tf.int64), tf.TensorSpec([]))
            with no_python_values(who), noticing_draws() as drawn:
                function = tf.function(noticed, autograph=False).get_concrete_function(dict(batch), *moment)
            result = function.structured_outputs
            found = ancestries(function, result[0], sorted(batch), variables)
            used = [bool(tensor.consumers()) for tensor in function.inputs]  # the variables come last
            unused = {key for key, is_used in zip(sorted(batch), used, strict=False) if not is_used}
            asks_progress = used[len(batch) + 1]
            convolves, loops = _convolutions(function)
            if held is not None:
                operations = function.graph.get_operations()
                refuse_side_effects(operations, function.graph, who, held, has_rng=name != EVALUATE)
                python += python_calls(operations, who)
                draws += [*draws_twice(drawn, who, __file__), *folds_for_nothing(drawn, who)]
                if name != EVALUATE:
                    sums = function.structured_outputs[1]
                    draws += fixed_draws(drawn, seed.seed, who)
                    python += [*squashed_twice(operations, who), *before.changed(who)]
                    meant = {narrowing.dtype, *dtypes}
                    python += detours(operations, sums["loss"], meant, who) if isinstance(sums, dict) else ()
    unread = frozenset(read & unused)
    access = Access(
        frozenset(read),
        unread,
        tuple(variables),
        seen.mixes,
        asks_progress,
        averages,
        found,
        convolves=convolves,
        loops=loops,
        python=tuple(python),
        draws=tuple(draws),
        casts=tuple({(id(w), dtype): (w, dtype) for w, dtype in cast}.values()),
        without_rng=tuple(layer for layer, handed in calls.items() if not any(handed)),
    )
    return result, access


def _convolutions(function: Any) -> tuple[bool, bool]:
    """Returns two booleans about a traced function and its callees: has a convolution, has a convolution in a loop."""

    def convolves(graph: Any) -> bool:
        return any(_CONVOLUTION.match(op.type) for each in graphs_of(graph) for op in each.get_operations())

    loops = (op for graph in graphs_of(function.graph) for op in graph.get_operations() if "body" in op.node_def.attr)
    return convolves(function.graph), any(convolves(body) for op in loops for _, body in functions_of(op))


class _Mixing:
    """Simulates other replicas with the rows of this one, and records whether a function asks for their rows."""

    def __init__(self, replicas: int):
        self.replicas, self.mixes = replicas, False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        with summing_over_replicas(self._sum), sharing_rows(self):
            yield

    def all(self, x: tf.Tensor) -> tf.Tensor:
        self.mixes = True
        return tf.concat([x] * self.replicas, axis=0)

    def own(self, x: tf.Tensor) -> tf.Tensor:
        return tf.split(x, self.replicas)[0] if x.shape[0] is not None else x[: tf.shape(x)[0] // self.replicas]

    def _sum(self, sums: Any) -> Any:
        self.mixes = True
        return sums


_untraced: contextvars.ContextVar[bool] = contextvars.ContextVar("untraced", default=False)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """For debugging: in its context, step functions are inspected by one eager call on zeros, without a trace."""
    token = _untraced.set(True)
    try:
        yield
    finally:
        _untraced.reset(token)
