"""Gives the variables of a task the weights that a run begins with."""

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

REFRESHES = 30  # after which a vector from anywhere is about where it is led to


class Begun(NamedTuple):
    """Says what a run began with: in a line, and as its checkpoints remember it."""

    line: str
    record: Mapping[str, Any]


def begin_with(start: StartFrom, task: tf.Module) -> Begun:
    """Assigns what `start` names, bit for bit; nothing is assigned unless all of it is there and fits.

    What is derived from these weights follows them.
    """
    weights = start.open()
    if refusal := weights.refusal(task):
        raise ConfigurationError(refusal)
    variables = named_variables(task)
    fit = fitted(variables, weights, start)
    for path, part in fit.parts.items():
        _read(weights, part, variables[path])  # all is seen before any is taken, and never held at once
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
    """Returns what a variable takes; raises a `CheckpointError` where nothing can be learnt from it."""
    value = weights.read(part.name)
    if part.axes is not None:
        value = np.transpose(value, part.axes)
    value = np.ascontiguousarray(value.astype(variable.dtype.as_numpy_dtype, copy=False)).reshape(variable.shape)
    if variable.dtype.is_floating and not np.isfinite(value).all():
        raise CheckpointError(
            f"`{part.name}` of {weights.place} has values that aren't finite: nothing can be learnt from there. "
            "Take an earlier checkpoint, or leave it out by `take`."
        )
    return value


def _widened(dtype: str, variable: tf.Variable) -> str:
    return "" if dtype == variable.dtype.name else f"widened from {dtype}"


def refresh_derived(task: tf.Module, taken: Container[int], averages: Container[int]) -> None:
    """Brings derived state to the weights that were taken: those with an id in `taken`, some of them `averages`.

    What was taken with its weights stays to the bit; with their averages it is refreshed as evaluation does it, once.
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

    refresh.get_concrete_function()  # which variables are derived shows as it is traced
    if not all(variable in taken for variable in derived):
        times = REFRESHES
    else:
        times = int(any(id(v) in averages for v in part.variables))
    for _ in range(times):
        refresh()
