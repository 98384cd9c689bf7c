"""A mesh as gin files name it: sizes and layouts. Nothing is made yet: a plan may be of more devices than exist."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import gin

from core.arguments import is_size
from core.errors import ConfigurationError, shown
from core.parallel.mesh.layouts import Layouts

BATCH, MODEL = "batch", "model"  # the axes of a mesh: rows of a batch, and parts of a model


@dataclasses.dataclass(frozen=True)
class MeshPlan:
    """How many devices there are along each axis, and how variables, slots and activations lie on them."""

    sizes: Mapping[str, int]
    layouts: Layouts
    slot_layouts: Layouts
    output_layouts: Layouts  # of what modules return, by the modules' paths

    @property
    def slots(self) -> Layouts:
        """Returns how slots lie: as their parameters do, unless a pattern of their own matches."""
        return self.slot_layouts.before(self.layouts)

    @property
    def devices(self) -> int:
        """Counts the devices."""
        return self.sizes[BATCH] * self.sizes[MODEL]

    def check_rows(self, rows: int, microbatches: int = 1, *, what: str) -> None:
        """Refuses a batch whose microbatches have no equal share for each row of devices; `what` is its size."""
        parts = microbatches * self.sizes[BATCH]
        if rows % parts:
            split = f"{microbatches} microbatches x " if microbatches > 1 else ""
            nearest = max(1, round(rows / parts)) * parts
            raise ConfigurationError(
                f"{what} is {rows}, which {split}`mesh.batch` = {self.sizes[BATCH]} can't share evenly; the nearest "
                f"that fits is {nearest}."
            )

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuses patterns that don't fit the variables of a task, of these shapes."""
        self.layouts.check(shapes)
        self.slot_layouts.check(shapes)

    def check_slots(self, paths: Collection[str]) -> None:
        """Refuses patterns of slots that lay out none: the parameters of these `paths` have slots of their shape."""
        self.slot_layouts.check_used(paths, "variable that has a slot of its own shape")

    def __str__(self) -> str:
        return f"{self.sizes[BATCH]}x{self.sizes[MODEL]}"


class OnMesh(NamedTuple):
    """What a variable of a mesh is told of itself: layers and rules then compute what a mesh can cut."""

    strategy: Any  # none on paper, where a step is looked at as if on the mesh
    axes: tuple[str, ...]


@gin.configurable
def mesh(
    *,
    batch: int = 1,
    model: int = 1,
    layouts: Sequence[tuple[str, str]] = (),
    slot_layouts: Sequence[tuple[str, str]] = (),
    output_layouts: Sequence[tuple[str, str]] = (),
) -> MeshPlan:
    """Cuts a model that no device holds: along `model` its variables by `layouts`, along `batch` the rows.

    `layouts` are pairs of a pattern of paths and an axis for each dimension: `("*/attention/out/w", "model,-")`. The
    first that matches counts, and what none matches is whole on every device. A slot lies as its parameter does, unless
    one of `slot_layouts` matches the parameter's path. Modules return tensors that lie as `output_layouts` say, by
    patterns of the modules' paths, or else as what they compute falls.
    """
    for name, size in ((BATCH, batch), (MODEL, model)):
        if not is_size(size):
            raise ConfigurationError(f"`mesh.{name}` is {shown(size)}; it counts devices: give 1 or more.")
    sizes = {BATCH: int(batch), MODEL: int(model)}
    slots = Layouts(slot_layouts, sizes, binding="mesh.slot_layouts")
    outputs = Layouts(output_layouts, sizes, binding="mesh.output_layouts")
    return MeshPlan(sizes, Layouts(layouts, sizes), slots, outputs)
