"""Assigns a run's initial weights to the variables of its task."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import listed
from core.errors import CheckpointError, ConfigurationError
from core.module import named_variables
from core.task.statistics import commit
from core.weights.fit import Part, fitted
from core.weights.weights import StartFrom, Weights

REFRESHES = 30  # after so many, a power iteration from any vector has about converged


class Begun(NamedTuple):
    """A run's initial weights, in words: a `line` to print, and a `record` for the run's checkpoints."""

    line: str
    record: Mapping[str, Any]


def begin_with(start: StartFrom, task: tf.Module) -> Begun:
    """Assigns the weights that `start` names, bit for bit. If one is missing or doesn't fit, it assigns none.

    Then it recomputes state that modules derive from weights, such as a spectral norm.
    """
    weights = start.open()
    if refusal := weights.refusal(task):
        raise ConfigurationError(refusal)
    variables = named_variables(task)
    fit = fitted(variables, weights, start)
    for path, part in fit.parts.items():
        _read(weights, part, variables[path])  # all are checked before any is assigned, one in memory at a time
    for path, part in fit.parts.items():
        variables[path].assign(_read(weights, part, variables[path]))
    taken = {id(variables[path]): part.name for path, part in fit.parts.items()}
    refresh_derived(task, taken, {variable for variable, name in taken.items() if weights.called(name)})
    said = Counter(
        word
        for path, part in fit.parts.items()
        for word in (weights.called(part.name), _widened(weights.types[part.name].dtype, variables[path]))
        if word
    )
    return Begun(
        f"begins with {weights.place}: {len(fit.parts)} of {len(variables)} variables"
        + "".join(f", {count} of them {word}" for word, count in said.items())
        + (f"; as initialised: {listed(fit.kept, most=3)}" if fit.kept else "")
        + (f"; not taken: {listed(fit.left, most=3)}" if fit.left else ""),
        {**weights.record, "variables": {path: part.name for path, part in fit.parts.items()}},
    )


def _read(weights: Weights, part: Part, variable: tf.Variable) -> npt.NDArray[Any]:
    """Returns the saved value of `variable` in its dtype. A value that isn't finite raises a `CheckpointError`."""
    value = weights.read(part.name)
    if part.axes is not None:
        value = np.transpose(value, part.axes)
    value = np.ascontiguousarray(value.astype(variable.dtype.as_numpy_dtype, copy=False)).reshape(variable.shape)
    if variable.dtype.is_floating and not np.isfinite(value).all():
        raise CheckpointError(
            f"`{part.name}` of {weights.place} has values that aren't finite, so training can't start from it. "
            "Take an earlier checkpoint, or exclude it with `take`."
        )
    return value


def _widened(dtype: str, variable: tf.Variable) -> str:
    return "" if dtype == variable.dtype.name else f"widened from {dtype}"


def refresh_derived(task: tf.Module, taken: Container[int], averages: Container[int]) -> None:
    """Recomputes the derived state of each module that has a variable whose id is in `taken`.

    If all of a module's derived state is in `taken`, it stays as saved. The exception is a module with a variable in
    `averages`: its derived state is recomputed once.
    """
    for part in (task, *task.submodules):
        if hasattr(part, "refresh") and any(id(v) in taken for v in part.variables):
            _refresh(part, taken, averages)


def _refresh(part: tf.Module, taken: Container[int], averages: Container[int]) -> None:
    derived = list[int]()

    @tf.function(autograph=False)
    def refresh() -> None:
        values = part.refresh()
        derived.extend(id(reference.deref()) for reference in values)
        commit(values)

    refresh.get_concrete_function()  # tracing shows which variables are derived
    if not all(variable in taken for variable in derived):
        times = REFRESHES
    else:
        times = int(any(id(v) in averages for v in part.variables))
    for _ in range(times):
        refresh()
