"""Finds side effects of a traced step function: writes, TensorFlow's random numbers, variables outside the task.

A side effect raises an error before the first step of a run. The assertions of `core.testing` use the same rules.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError
from core.graphs import captured, everything, line
from core.tensorflow_private import watched_variables

_WRITES = re.compile(
    r"Assign|Resource(?!Gather)|LookupTable(Insert|Import|Remove)|(Barrier|Stack|Queue).*(Insert|Push|Pop|Enqueue|Dequeue)"
)
_OF_VARIABLE = re.compile(r"Assign|Resource")
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# Replacements for TensorFlow's random operations, from `rng`.
_DRAWS = {
    "RandomStandardNormal": "`rng.normal(shape)`, or for each row its own, `rng.rows.normal(*shape)`",
    "RandomUniform": "`rng.uniform(shape)`, `rng.rows.uniform(*shape)`, or for dropout `core.layers.Dropout`",
    "TruncatedNormal": "`rng.truncated_normal(shape)`",
    "RandomUniformInt": "`tf.random.stateless_uniform(shape, rng.seed, ...)`",
    "RandomShuffle": "`tf.random.experimental.stateless_shuffle(x, rng.seed)`",
    "Multinomial": "`tf.random.stateless_categorical(logits, n, rng.seed)`",
    "RandomGamma": "`tf.random.stateless_gamma(shape, rng.seed, alpha)`",
    "RandomPoissonV2": "`tf.random.stateless_poisson(shape, rng.seed, lam)`",
    "StatefulUniform": "`rng.uniform(shape)`",
    "StatefulStandardNormalV2": "`rng.normal(shape)`",
    "StatefulUniformInt": "`tf.random.stateless_uniform(shape, rng.seed, ...)`",
    "StatefulTruncatedNormal": "`rng.truncated_normal(shape)`",
    "RngReadAndSkip": "`rng.fold(...)`",
}


def paths_by_id(variables: Mapping[str, tf.Variable]) -> dict[int, str]:
    """Returns `{id(variable): path}`, with an entry for each replica's copy too: tapes and graphs contain copies."""
    return {id(part): path for path, v in variables.items() for part in (v, *getattr(v, "values", ()))}


def draws_of_tensorflow(operations: Iterable[Any], who: str, *, has_rng: bool) -> Iterator[str]:
    """Yields an error text for each operation that uses TensorFlow's random generators or reads a data iterator."""
    for op in everything(operations):
        if op.type in _DRAWS:
            instead = _DRAWS[op.type]
            where = "" if has_rng else ", with `rng = Rng.from_seed(0)`: it is handed none"
            yield (
                f"{who} draws from TensorFlow's own generator {line(op)}: the numbers differ between replicas, in a "
                f"resumed run and with other microbatches, and no second call is the same. Draw {instead}{where}."
            )
        elif op.type in ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"):
            yield (
                f"{who} takes examples from an iterator {line(op)}, whose place no checkpoint keeps. Read them as "
                "features of the batch: `Experiment.train_source` hands them out, a `mixture` or `Stream` among others."
            )


def writes(operations: Iterable[Any], who: str, held: Mapping[int, str] = {}, *, is_step: bool = True) -> Iterator[str]:
    """Yields an error text for each operation that writes, for example to a variable, a table or a queue.

    The texts begin with `who`. `held` is `{id of a task's variable: path}`, for the texts. `is_step` selects the remedy
    for a step function, or that for another function.
    """
    remedy = (
        "A step function assigns nothing: return statistics, make derived state in `refresh()`, keep history in a "
        "`Compute` with `state`."
        if is_step
        else "Training alone changes what a task holds: keep the value in a tensor, and pass that on."
    )
    for op in everything(operations):
        if _WRITES.match(op.type):
            what = _written(op, held) if _OF_VARIABLE.match(op.type) else f"a table, queue or stack (`{op.type}`)"
            yield f"{who} writes {what} {line(op)}. {remedy}"


def python_calls(operations: Iterable[Any], who: str) -> Iterator[str]:
    """Yields a warning for each line of code that calls a Python function."""
    for place in dict.fromkeys(line(op) for op in everything(operations) if op.type in _PYTHON):
        yield (
            f"{who} calls Python {place}: no checkpoint keeps what that remembers, and a resumed run may see other "
            "values"
        )


def foreign_variables(graph: Any, held: Mapping[int, str], who: str) -> Iterator[str]:
    """Yields an error text for each variable that a function's `graph` reads and whose id isn't in `held`."""
    for variable in variables_of(graph):
        if id(variable) not in held:
            yield (
                f"{who} reads the variable `{variable.name}`{_read_at(graph, variable)}, which isn't part of the "
                "task: no phase trains it and no checkpoint holds it. Make it in `__init__` of a `core.module.Module`, "
                "and keep that as an attribute of the task or of one of its modules, named in `Task.frozen` if nothing "
                "trains it; or hand its value in as a feature of the batch."
            )


def variables_of(graph: Any) -> list[tf.Variable]:
    """Returns the variables that a function's graph reads or writes, from TensorFlow's list after tracing."""
    return list(getattr(graph, "variables", ())) or watched_variables(graph)


def refuse_side_effects(
    operations: Sequence[Any], graph: Any, who: str, held: Mapping[int, str], *, has_rng: bool, is_step: bool = True
) -> None:
    """Raises a `ConfigurationError` for the first side effect among the operations of a traced function."""
    for found in (
        draws_of_tensorflow(operations, who, has_rng=has_rng),
        writes(operations, who, held, is_step=is_step),
        foreign_variables(graph, held, who),
    ):
        if message := next(found, None):
            raise ConfigurationError(message)


def _written(op: Any, held: Mapping[int, str]) -> str:
    name = next((x.op.name for x in op.inputs if x.dtype == tf.resource), "")
    found = [held.get(id(v), v.name) for v in variables_of(op.graph) if _inner(op.graph, v) == name]
    return f"the variable `{found[0]}`" if found else "a variable"


def _inner(graph: Any, variable: tf.Variable) -> str | None:
    """Returns the name of the placeholder through which `graph` reads the outer `variable`, if any."""
    inner = captured(graph).get(id(variable.handle))
    return None if inner is None else inner.op.name


def _read_at(graph: Any, variable: tf.Variable) -> str:
    name = _inner(graph, variable)
    readers = (op for op in graph.get_operations() if any(x.op.name == name for x in op.inputs))
    reader = next(readers, None)
    return f" {line(reader)}" if reader is not None else ""
