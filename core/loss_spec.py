"""What a step function returns: its checks, its structure, its sums.

The structure is found out by tracing the function once, before the first step. Here a mistake becomes an error that
names the phase: a scalar loss, shapes that don't match, a variable made on the way.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.errors import ConfigurationError, did_you_mean
from core.metrics import State
from core.random import Rng
from core.statistics import summing_over_replicas
from core.task import Batch, Loss

GRADIENT_NORM = "gradient_norm"

# Names that a line of figures has for something else.
RESERVED = frozenset(
    {"loss", "weight", GRADIENT_NORM, "step", "split", "examples_per_second", "step_seconds", "data_wait"}
)

Specs = Mapping[str, tf.TensorSpec]
Sums = Mapping[str, Any]  # "weight", "loss" and each metric: weighted sums, or an additive state


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


def weighted_sums(loss: Loss) -> tuple[tf.Tensor, dict[str, Any]]:
    """The sum to differentiate, and all that is reported, as sums."""
    if loss.weight is None:
        weight = None
        total = tf.cast(tf.size(loss.per_example), tf.float32)
    else:
        weight = tf.cast(loss.weight, tf.float32)
        total = tf.reduce_sum(weight)

    def weigh(x: tf.Tensor) -> tf.Tensor:
        x = tf.cast(x, tf.float32)
        if weight is None:
            return tf.reduce_sum(x)
        # Select, don't multiply: nothing may leak from where the weight is zero, a NaN least of all.
        return tf.reduce_sum(tf.where(weight != 0.0, weight * x, 0.0))

    objective = weigh(loss.per_example)
    metrics = {name: x if isinstance(x, State) else weigh(x) for name, x in loss.metrics.items()}
    return objective, {"weight": total, "loss": objective, **metrics}


def means(sums: Sums) -> dict[str, float]:
    """The figures that sums stand for: weighted means, and the results of additive states; NaN of nothing."""
    weight = float(sums["weight"])
    figures: dict[str, float] = {}
    for name, x in sums.items():
        if isinstance(x, State):
            result = x.result()
            named = result.items() if isinstance(result, Mapping) else [("", result)]
            figures |= {f"{name}/{suffix}".rstrip("/"): float(value) for suffix, value in named}
        elif name != "weight":
            figures[name] = float(x) / weight if weight else math.nan
    return figures


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


def checked(loss: Any, name: str, rows: int | None) -> Loss:
    """`loss`, if it is one value per example with everything else in the same shape."""
    if not isinstance(loss, Loss):
        raise TypeError(
            f"phase `{name}` returned {type(loss).__name__}; a step function returns `Loss(per_example, ...)` from "
            "`core.task`, with one value per example."
        )
    for key, value in {"per_example": loss.per_example, "weight": loss.weight, **loss.metrics}.items():
        absent = key == "weight" and value is None
        if not isinstance(key, str) or not (absent or tf.is_tensor(value) or isinstance(value, State)):
            raise TypeError(
                f"phase `{name}` returned a `Loss` with `{key}` = {value!r}; `per_example`, `weight` and metrics are "
                "tensors, and metrics have names."
            )
    for key in RESERVED & loss.metrics.keys():
        raise ValueError(f"phase `{name}` returned a metric named `{key}`; that name is the engine's own: rename it.")
    shape = loss.per_example.shape
    if shape.rank == 0:
        raise ValueError(
            f"phase `{name}` returned a scalar loss (shape {shape}). Return one value per example and let the engine "
            "take the mean: `Loss(per_example)` instead of `Loss(tf.reduce_mean(per_example))`. A scalar regulariser "
            "is added to every row: `Loss(per_example + penalty)`."
        )
    if rows is None and shape[0] is not None and not tf.executing_eagerly():
        raise ValueError(
            f"phase `{name}` returned a loss of shape {shape} for any number of rows; the first axis of `per_example` "
            "is the batch: return one value per example, not a mean over them."
        )
    if rows is not None and not shape.is_fully_defined():
        raise ValueError(
            f"phase `{name}` returned a loss of shape {shape}, which isn't known while tracing (`tf.boolean_mask` and "
            "the like have such results). Keep all rows and give those that don't count a `weight` of zero; or, where "
            f"the shape is known to you, say so: `tf.ensure_shape(per_example, [{rows}, ...])`."
        )
    if rows is not None and shape[0] != rows:
        raise ValueError(
            f"phase `{name}` returned a loss of shape {shape} for a batch of {rows} rows; the first axis of "
            "`per_example` is the batch: return one value (or one row of weighted values) per example."
        )
    if shape.rank != 1 and loss.weight is None:
        raise ValueError(
            f"phase `{name}` returned a loss of shape {shape} without a `weight`. Say what one value counts: "
            "`Loss(per_token, weight=mask)` with a weight of the same shape, or sum the inner axes to one value per "
            "example."
        )
    tensors = {key: x for key, x in loss.metrics.items() if not isinstance(x, State)}
    others = {"weight": loss.weight, **{f"metrics[{key!r}]": x for key, x in tensors.items()}}
    for key, value in others.items():
        if value is not None and not (value.shape.rank == shape.rank and value.shape.is_compatible_with(shape)):
            raise ValueError(
                f"phase `{name}` returned `{key}` of shape {value.shape} beside `per_example` of shape {shape}; both "
                "hold one value for the same things, so give both the same shape."
            )
    return loss


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
