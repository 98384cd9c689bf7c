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
    check_places(task, placements=placements, one_device=one_device, instead=_INSTEAD)
    plan.check({path: variable.shape for path, variable in named_variables(task).items()})
    check_outputs(task, plan.output_layouts)


def check_places(task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str], instead: str) -> None:
    """Refuses an experiment, or a task, that asks for something to be on one device; says what to do `instead`."""
    if placements:
        raise ConfigurationError(f"`Experiment.placements` places {listed(placements)}. {instead}")
    if one_device:
        raise ConfigurationError(f"`Experiment.one_device` names {listed(one_device)}. {instead}")
    name = type(task).__name__
    if task.one_device:
        raise ConfigurationError(f"`{name}.one_device` names {listed(task.one_device)}. {instead}")
    phases: Any = task.phases()
    for phase in phases if isinstance(phases, list | tuple) else ():
        if isinstance(phase, Compute) and phase.state is not None:
            raise ConfigurationError(
                f"phase `{phase.name}` of `{name}` keeps history (`Compute(state=...)`), which lives on one device. "
                f"{instead}"
            )
        if getattr(phase, "placement", None) == ONE_DEVICE:
            raise ConfigurationError(f"phase `{phase.name}` of `{name}` has `placement=ONE_DEVICE`. {instead}")
