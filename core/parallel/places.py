"""Checks for strategies that can't place phases or networks on one device, nor share the work of an update."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.arguments import listed
from core.errors import ConfigurationError
from core.optimizers import Optimizer
from core.task import ONE_DEVICE, Compute, Placement, Task, Update


def check_places(task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str], instead: str) -> None:
    """Raises an error if an experiment or a task places phases or networks. The text ends with `instead`."""
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
        if isinstance(phase, Update) and phase.optimizer.curvature:
            raise ConfigurationError(
                f"phase `{phase.name}` of `{name}` trains by `{phase.optimizer.name}`, which estimates the curvature "
                f"of its loss on replicas only. {instead}"
            )


def refuse_sharded(optimizers: Iterable[Optimizer], *, instead: str) -> None:
    """Raises an error if a rule splits its work over replicas (`sharded=True`). The text ends with `instead`."""
    for optimizer in optimizers:
        for rule in optimizer.sharded:
            raise ConfigurationError(
                f"`{rule}.sharded` splits an update over replicas that take each step together. {instead}"
            )
