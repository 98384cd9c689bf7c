"""Checks of a task's phases and variables, made without tracing a step function."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean
from core.module import named_variables
from core.task import ONE_DEVICE, Compute, Phase, Placement, Task, Update


def checked_phases(task: Task) -> list[Phase]:
    """Returns `task.phases()` as a list; raises a `ConfigurationError` if they can't form a training step."""
    name = type(task).__name__
    phases: Any = task.phases()
    if not isinstance(phases, list | tuple):
        raise ConfigurationError(f"`{name}.phases()` returned {phases!r}; return a list of `Update` and `Compute`.")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise ConfigurationError(f"`{name}.phases()` returned {phase!r}; each phase is an `Update` or a `Compute`.")
    names = [phase.name for phase in phases]
    for phase_name in names:
        if names.count(phase_name) > 1:
            raise ConfigurationError(f"`{name}.phases()` has two phases named `{phase_name}`; give each its own name.")
    if not any(isinstance(phase, Update) for phase in phases):
        raise ConfigurationError(f"`{name}.phases()` trains nothing; return at least one `Update`.")
    _check_overlaps(phases)
    _check_history(phases)
    return list(phases)


def placed_phases(phases: Sequence[Phase], placements: Mapping[str, Placement]) -> list[Phase]:
    """Returns `phases` with the placements that `placements` gives, `{phase name: placement}`."""
    names = [phase.name for phase in phases]
    for name, placement in placements.items():
        if name not in names:
            raise ConfigurationError(
                f"`Experiment.placements` names the phase `{name}`; the task has {listed(names)}."
                f"{did_you_mean(name, names)}"
            )
        phase = phases[names.index(name)]
        if isinstance(phase, Compute) and phase.state is not None and placement != ONE_DEVICE:
            raise ConfigurationError(
                f"`Experiment.placements` gives phase `{name}` {placement!r}, but the phase keeps history (`state`) "
                "and so always runs on one device: leave it out."
            )
    return [
        dataclasses.replace(phase, placement=placements[phase.name]) if phase.name in placements else phase
        for phase in phases
    ]


def _named_by(task: Task, name: str) -> str:
    owner = type(task).__name__ if name in task.one_device else "Experiment"
    return f"`{owner}.one_device` names `{name}`"


def named_module(task: Task, name: str, named_by: str) -> tf.Module:
    """Returns the module in the attribute `name` of `task`. Error messages begin with the text `named_by`."""
    module: Any = getattr(task, name, None)
    if not isinstance(module, tf.Module):
        known = [key for key, value in vars(task).items() if isinstance(value, tf.Module)]
        raise ConfigurationError(
            f"{named_by}, which is {module!r}; name attributes that hold a module: `{type(task).__name__}` has "
            f"{listed(known)}.{did_you_mean(name, known)}"
        )
    return module


def one_device_network(task: Task, name: str) -> tf.Module:
    return named_module(task, name, _named_by(task, name))


def check_unshared(task: Task, name: str) -> None:
    """Raises an error if the one-device network `name` shares a variable with another attribute of `task`."""
    network = one_device_network(task, name)
    own = {id(variable): path for path, variable in named_variables(network).items()}
    delattr(task, name)
    shared = [path for path, variable in named_variables(task).items() if id(variable) in own]
    setattr(task, name, network)
    if shared:
        raise ConfigurationError(
            f"{_named_by(task, name)}, but its variable `{shared[0]}` belongs to another attribute of the task as "
            "well: it can't be in both places. Name both, as one module that holds all of it, or keep the network on "
            "every replica."
        )


def check_variables(
    task: Task,
    variables: Mapping[str, tf.Variable],
    phases: Sequence[Phase],
    strategy: tf.distribute.Strategy,
    one_device_ids: Collection[int],
) -> None:
    """Raises an error for a variable made outside the strategy's scope, and for a trained one outside the task."""
    name, known = type(task).__name__, {id(variable) for variable in variables.values()}
    for phase in phases:
        for path, variable in phase.variables().items() if isinstance(phase, Update) else ():
            if id(variable) not in known:
                raise ConfigurationError(
                    f"phase `{phase.name}` trains `{path}`, which isn't part of `{name}`: no checkpoint would hold it. "
                    "Make the network in `__init__` of the task and keep it there as an attribute (`self.net = ...`)."
                )
    for path, variable in variables.items():
        # A variable made outside the scope would train to wrong values without an error (TensorFlow issue 41768).
        if id(variable) not in one_device_ids and not strategy.extended.variable_created_in_scope(variable):
            raise ConfigurationError(
                f"variable `{path}` of `{name}` was made outside the strategy's scope. Make it in the task's "
                "`__init__`, which is called inside `strategy.scope()`; don't make it when a module is imported or in "
                "`phases()`, and don't share it between tasks."
            )


def _check_overlaps(phases: Sequence[Phase]) -> None:
    """Raises an error if two updates train one variable. Only a penalty with another `every` may do so."""
    updates = [phase for phase in phases if isinstance(phase, Update)]
    for one, other in itertools.combinations(updates, 2):
        mine = {id(variable): path for path, variable in one.variables().items()}
        theirs = {id(variable) for variable in other.variables().values()}
        both = mine.keys() & theirs
        if both and (mine.keys() != theirs or one.every == other.every):
            raise ConfigurationError(
                f"phases `{one.name}` and `{other.name}` both train `{mine[next(iter(both))]}`: two optimizers would "
                "change it. Let each phase train separate networks, or add the losses up in one phase. Only a penalty "
                "with another `every` may be a phase that trains the same network."
            )


def _check_history(phases: Sequence[Phase]) -> None:
    """Raises an error if an update trains a variable in the `state` (history) of a `Compute`."""
    trained = {
        id(variable): phase.name
        for phase in phases
        if isinstance(phase, Update)
        for variable in phase.variables().values()
    }
    for phase in phases:
        for path, variable in _history_of(phase).items():
            if id(variable) in trained:
                raise ConfigurationError(
                    f"`state` of phase `{phase.name}` holds `{path}`, which phase `{trained[id(variable)]}` trains: "
                    "keep history in a separate module."
                )


def _history_of(phase: Phase) -> dict[str, tf.Variable]:
    if not isinstance(phase, Compute) or phase.state is None:
        return {}
    return named_variables(phase.state)
