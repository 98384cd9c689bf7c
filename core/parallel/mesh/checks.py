"""Checks, before variables are made, for features that a mesh doesn't support, because it is one replica."""

from collections.abc import Iterable, Mapping, Sequence

from core.errors import ConfigurationError
from core.module import named_variables
from core.optimizers import Optimizer
from core.optimizers.narrow_slots import is_narrow
from core.parallel.mesh.outputs import check_outputs
from core.parallel.mesh.plan import MeshPlan
from core.parallel.places import check_places
from core.task import Placement, Task

_INSTEAD = "On a mesh every device takes part in every phase: leave it out, or train on replicas (`@mirrored()`)."


def check_on_mesh(
    plan: MeshPlan, task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str]
) -> None:
    """Raises an error for placements, which a mesh doesn't support, and for layout patterns that don't fit `task`."""
    check_places(task, placements=placements, one_device=one_device, instead=_INSTEAD)
    plan.check({path: variable.shape for path, variable in named_variables(task).items()})
    check_outputs(task, plan.output_layouts)


def check_slots_on_mesh(optimizers: Iterable[Optimizer]) -> None:
    """Raises an error for an optimizer with narrow slots: a mesh can't shard their rounding and their blocks."""
    for optimizer in optimizers:
        for name, slot in optimizer.variables.items():
            if is_narrow(slot):
                raise ConfigurationError(
                    f"the optimizer stores `{name}` in {slot.dtype.name} (`slots`), whose rounding a mesh can't shard: "
                    "leave `slots` out and shard float32 slots by `mesh.slot_layouts`, or train on replicas "
                    "(`@mirrored()`)."
                )
