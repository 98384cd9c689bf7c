"""A task's phases, checked as far as they can be without tracing them."""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import named_variables
from core.task import Compute, Phase, Task, Update


def checked_phases(task: Task) -> list[Phase]:
    """The phases of `task`, if a step can be made of them."""
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


def _check_overlaps(phases: Sequence[Phase]) -> None:
    """Two updates train different networks, or the very same one at different intervals: a lazy penalty."""
    updates = [phase for phase in phases if isinstance(phase, Update)]
    for one, other in itertools.combinations(updates, 2):
        mine = {id(variable): path for path, variable in one.variables().items()}
        theirs = {id(variable) for variable in other.variables().values()}
        both = mine.keys() & theirs
        if both and (mine.keys() != theirs or one.every == other.every):
            raise ConfigurationError(
                f"phases `{one.name}` and `{other.name}` both train `{mine[next(iter(both))]}`: two optimizers would "
                "pull at it. Let each phase train networks of its own, or add the losses up in one phase; a penalty "
                "that is due more rarely (`every`) may be a phase that trains the very same network."
            )


def _check_history(phases: Sequence[Phase]) -> None:
    """What a `Compute` keeps as its history is trained by no update."""
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
                    "keep history in a module of its own."
                )


def _history_of(phase: Phase) -> dict[str, tf.Variable]:
    if not isinstance(phase, Compute) or phase.state is None:
        return {}
    return named_variables(phase.state)
