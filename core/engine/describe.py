"""What a step function reads and makes, found by tracing it once.

The structure is found out by tracing the function once, before the first step. Here a mistake becomes an error that
names the phase: a scalar loss, shapes that don't match, a variable made on the way.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.errors import ConfigurationError, did_you_mean
from core.random import Rng
from core.task.loss import GRADIENT_NORM, Batch, Loss, checked, weighted_sums
from core.task.statistics import summing_over_replicas

Specs = Mapping[str, tf.TensorSpec]


class Access(NamedTuple):
    """What a step function was seen to touch."""

    reads: frozenset[str]  # of its batch
    shapes_only: frozenset[str]  # of those, what it looked at for nothing but its shape
    variables: tuple[tf.Variable, ...]  # the trainable ones


@dataclasses.dataclass(frozen=True)
class LossSpec:
    """The structure of one phase's `Loss`."""

    sums: Any  # a nest of specs
    weighted: bool
    outputs: Specs
    statistics: Any  # a nest of specs
    access: Access

    @property
    def sums_of_update(self) -> Any:
        """What training adds to the sums, as specs."""
        return {**self.sums, GRADIENT_NORM: tf.TensorSpec([])}

    def zero_sums(self) -> dict[str, Any]:
        """Sums of nothing."""
        return dict(zeros(self.sums))


class Inputs(dict[str, tf.Tensor]):
    """The batch of a phase; it knows what was read, and asked for a value that isn't in it, which there are."""

    def __init__(self, values: Batch, phase: str, elsewhere: Mapping[str, str], read: set[str]):
        super().__init__(values)
        self.phase, self.elsewhere, self.read = phase, elsewhere, read

    def __getitem__(self, key: str) -> tf.Tensor:
        self.read.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.keys())  # who goes through all of them may use all of them
        return super().__iter__()

    def items(self) -> Any:
        """All of them, which therefore all count as read."""
        self.read.update(self.keys())
        return super().items()

    def values(self) -> Any:
        """All of them, which therefore all count as read."""
        self.read.update(self.keys())
        return super().values()

    def get(self, key: str, default: Any = None) -> Any:
        """As in any dict."""
        self.read.add(key)
        return super().get(key, default)

    def __missing__(self, key: str) -> tf.Tensor:
        reason = self.elsewhere.get(key, "the source has no such feature, and no earlier phase makes it")
        raise ConfigurationError(
            f"phase `{self.phase}` reads `{key}`, but {reason}. It can read "
            f"{', '.join(f'`{known}`' for known in self)}.{did_you_mean(key, self)}"
        )


def describe_loss(
    loss: Callable[[Batch, Rng], Loss],
    batch: Specs,
    name: str,
    elsewhere: Mapping[str, str] = {},
    *,
    mixes_rows: bool = True,
) -> LossSpec:
    """The structure of `loss(batch, rng)` for batches `[rows, ...]` of the given specs.

    `elsewhere` says of values that exist why the phase can't read them. Unless it `mixes_rows`, no layer may sum over
    the replicas.
    """
    rows = next(iter(batch.values())).shape[0]

    weighted = False

    def traced(b: Batch, rng: Rng) -> Any:
        nonlocal weighted
        result = checked(loss(b, rng), name, rows)
        weighted = result.weight is not None
        statistics = result.statistics.sums if result.statistics else {}
        return weighted_sums(result)[1], dict(result.outputs), statistics

    (sums, outputs, statistics), access = _trace(traced, batch, name, elsewhere, mixes_rows)
    return LossSpec(_specs(sums), weighted, _by_row(_specs(outputs), rows, name), _specs(statistics), access)


def describe_outputs(
    fn: Callable[[Batch, Rng], Mapping[str, tf.Tensor]],
    batch: Specs,
    name: str,
    elsewhere: Mapping[str, str] = {},
    *,
    mixes_rows: bool = True,
) -> tuple[Specs, Access]:
    """The specs of what `fn(batch, rng)` returns; arguments as in `describe_loss`."""
    rows = next(iter(batch.values())).shape[0]
    outputs, access = _trace(lambda b, rng: dict(fn(b, rng)), batch, name, elsewhere, mixes_rows)
    return _by_row(_specs(outputs), rows, name), access


def _by_row(outputs: Specs, rows: int | None, name: str) -> Specs:
    for key, spec in outputs.items():
        if rows is not None and (spec.shape.rank == 0 or spec.shape[0] != rows):
            raise ConfigurationError(
                f"phase `{name}` makes `{key}` of shape {spec.shape} from {rows} rows; what later phases read has one "
                "row for each of the batch: `[rows, ...]`. Report a figure as a metric of a `Loss` instead."
            )
    return outputs


@contextlib.contextmanager
def _refusing_synchronisation(name: str) -> Iterator[None]:
    def refuse(sums: Any) -> Any:
        raise ConfigurationError(
            f"a layer of phase `{name}` sums over the replicas (`sync=True`), so that rows depend on each other: say "
            "`mixes_rows=True` for the phase, and its replicas take each microbatch together."
        )

    with summing_over_replicas(refuse):
        yield


def microbatch_specs(values: Batch) -> Specs:
    """What a step function sees of `values` [microbatches, rows, ...]."""
    return {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in values.items()}


def zeros(specs: Any) -> Any:
    """Nothing, in the structure of a nest of specs."""
    return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)


def _specs(nest: Any) -> Any:
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), nest)


def _trace(
    fn: Callable[[Batch, Rng], Any], batch: Specs, name: str, elsewhere: Mapping[str, str], mixes_rows: bool
) -> tuple[Any, Access]:
    rng, read, unused, variables = Rng.from_seed(0), set[str](), set[str](), list[tf.Variable]()

    def noticed(b: Batch) -> Any:
        with tf.GradientTape() as tape:
            result = fn(Inputs(b, name, elsewhere, read), rng)
        variables.extend(tape.watched_variables())
        return result

    with no_new_variables(name), contextlib.nullcontext() if mixes_rows else _refusing_synchronisation(name):
        if _untraced.get():
            shapes = {key: [1 if size is None else size for size in spec.shape] for key, spec in batch.items()}
            result = noticed({key: tf.zeros(shapes[key], spec.dtype) for key, spec in batch.items()})
        else:
            function = tf.function(noticed, autograph=False).get_concrete_function(dict(batch))
            result = function.structured_outputs
            given = zip(sorted(batch), function.inputs, strict=False)  # the variables come after them
            unused = {key for key, tensor in given if not tensor.consumers()}
    return result, Access(frozenset(read), frozenset(read & unused), tuple(variables))


_untraced: contextvars.ContextVar[bool] = contextvars.ContextVar("untraced", default=False)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Within it, step functions are described by running them eagerly, once, on zeros: for debugging."""
    token = _untraced.set(True)
    try:
        yield
    finally:
        _untraced.reset(token)


@contextlib.contextmanager
def no_new_variables(name: str) -> Iterator[None]:
    """Refuses variables that are made while a step function is being traced."""

    def refuse(_: Any, **kwargs: Any) -> tf.Variable:
        raise ValueError(
            f"phase `{name}` made a variable (`{kwargs.get('name') or 'Variable'}`) inside its step function. "
            "Variables are made once, in `__init__` of a module, where the strategy, the optimizer and the checkpoint "
            "can see them: move it there."
        )

    with tf.variable_creator_scope(refuse):
        yield
