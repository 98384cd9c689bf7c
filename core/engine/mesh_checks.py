"""What can't be on a mesh is refused before anything is made: it is one replica, and every device a part of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.arguments import listed
from core.distribution.mesh_outputs import check_outputs
from core.distribution.mesh_plan import MeshPlan
from core.errors import ConfigurationError
from core.module import named_variables
from core.task import ONE_DEVICE, Compute, Placement, Task

_INSTEAD = "On a mesh every device takes part in every phase: leave it out, or train on replicas (`@mirrored()`)."


def check_on_mesh(
    plan: MeshPlan, task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str]
) -> None:
    """Refuses what can't be on a mesh: places that an experiment or its task asks for, and patterns that don't fit."""
    _check_places(placements, one_device)
    _check_phases(task)
    plan.check({path: variable.shape for path, variable in named_variables(task).items()})
    check_outputs(task, plan.output_layouts)


def _check_places(placements: Mapping[str, Placement], one_device: Sequence[str]) -> None:
    """Refuses an experiment that asks for something to be on one device of a mesh."""
    if placements:
        raise ConfigurationError(f"`Experiment.placements` places {listed(placements)}. {_INSTEAD}")
    if one_device:
        raise ConfigurationError(f"`Experiment.one_device` names {listed(one_device)}. {_INSTEAD}")


def _check_phases(task: Task) -> None:
    """Refuses a task that asks for it."""
    name = type(task).__name__
    if task.one_device:
        raise ConfigurationError(f"`{name}.one_device` names {listed(task.one_device)}. {_INSTEAD}")
    phases: Any = task.phases()
    for phase in phases if isinstance(phases, list | tuple) else ():
        if isinstance(phase, Compute) and phase.state is not None:
            raise ConfigurationError(
                f"phase `{phase.name}` of `{name}` keeps history (`Compute(state=...)`), which lives on one device. "
                f"{_INSTEAD}"
            )
        if getattr(phase, "placement", None) == ONE_DEVICE:
            raise ConfigurationError(f"phase `{phase.name}` of `{name}` has `placement=ONE_DEVICE`. {_INSTEAD}")
