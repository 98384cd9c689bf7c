"""The training status of each variable of a task: trained by phases, frozen, or untrainable."""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError
from core.module import named_variables
from core.task.checks import named_module
from core.task.phases import Compute, Phase, Update
from core.task.task import Task


@dataclasses.dataclass(frozen=True)
class Standing:
    """A variable and its training status."""

    path: str
    variable: tf.Variable
    phases: tuple[str, ...]  # that train it
    frozen: bool  # declared in `Task.frozen`
    trainable: bool  # neither `tf.Variable(trainable=False)` nor history of a `Compute`

    @property
    def forgotten(self) -> bool:
        """Says whether the variable is trainable and not frozen, but no phase trains it."""
        return self.trainable and not self.phases and not self.frozen


def standings(task: Task, variables: Mapping[str, tf.Variable], phases: Sequence[Phase]) -> list[Standing]:
    """Returns the training status of each variable in `variables` (by path), in the same order."""
    trained_by: dict[int, tuple[str, ...]] = {}
    history = set[int]()
    for phase in phases:
        if isinstance(phase, Update):
            for variable in phase.variables().values():
                trained_by[id(variable)] = (*trained_by.get(id(variable), ()), phase.name)
        elif isinstance(phase, Compute) and phase.state is not None:
            history |= {id(variable) for variable in named_variables(phase.state).values()}
    frozen = {
        id(v)
        for name in task.frozen
        for v in named_variables(named_module(task, name, f"`{type(task).__name__}.frozen` names `{name}`")).values()
    }
    return [
        Standing(path, v, trained_by.get(id(v), ()), id(v) in frozen, v.trainable and id(v) not in history)
        for path, v in variables.items()
    ]


def check_trained(task: Task, variables: Mapping[str, tf.Variable], phases: Sequence[Phase]) -> None:
    """Raises an error if a trainable variable has no phase that trains it, or if a phase trains a frozen variable."""
    name, found = type(task).__name__, standings(task, variables, phases)
    for standing in found:
        if standing.frozen and standing.phases:
            raise ConfigurationError(
                f"`{name}.frozen` names a module that holds `{standing.path}`, which phase `{standing.phases[0]}` "
                "trains: leave it out of `frozen`, or out of the phase's `trains`."
            )
    forgotten = [standing.path for standing in found if standing.forgotten]
    if forgotten:
        names = [phase.name for phase in phases if isinstance(phase, Update)]
        raise ConfigurationError(
            f"no phase of `{name}` trains {listed(forgotten, most=3)}: add the module to the `trains` of "
            f"{listed(names)}. To freeze it, keep the module as an attribute of the task and name it there, "
            f'`frozen = ("encoder",)` in `class {name}`. Make a variable that nothing should ever train with '
            "`tf.Variable(..., trainable=False)`."
        )
