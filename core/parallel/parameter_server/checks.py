"""Checks, before the first step, for features that asynchronous training doesn't support."""

from collections.abc import Mapping, Sequence

from core.errors import ConfigurationError
from core.parallel.parameter_server.strategy import ServedStrategy
from core.parallel.places import check_places
from core.task import Phase, Placement, Task, Update

_INSTEAD = (
    "By parameter servers each step is taken whole by one worker, and others at the same time: leave it out, or train "
    "on replicas (`@mirrored()`)."
)


def check_served(
    strategy: ServedStrategy,
    task: Task,
    phases: Sequence[Phase],
    *,
    placements: Mapping[str, Placement],
    one_device: Sequence[str],
) -> None:
    """Raises an error for placements, history, or a `divide_by_staleness` that has no effect on the step size."""
    check_places(task, placements=placements, one_device=one_device, instead=_INSTEAD)
    for phase in phases:
        if strategy.divide_by_staleness and isinstance(phase, Update) and not phase.optimizer.linear:
            raise ConfigurationError(
                f"`parameter_server.divide_by_staleness` divides gradients, but the optimizer of phase `{phase.name}` "
                f"(`{phase.optimizer.name}`) isn't linear in them: a rule like Adam's would take a step of the same "
                "length. Leave it out, bound their age by `parameter_server.max_staleness`, or train by `sgd`."
            )
