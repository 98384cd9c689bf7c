"""The plan of a mesh for gin files: sizes and layouts. The devices needn't exist."""

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
    """The number of devices along each axis, and the layouts of variables, slots and activations."""

    sizes: Mapping[str, int]
    layouts: Layouts
    slot_layouts: Layouts
    output_layouts: Layouts  # of modules' outputs, by the modules' paths

    @property
    def slots(self) -> Layouts:
        """Returns layouts of slots, by parameter's path: those of a matching slot pattern, else the parameter's."""
        return self.slot_layouts.before(self.layouts)

    @property
    def devices(self) -> int:
        """Returns the number of devices in the mesh."""
        return self.sizes[BATCH] * self.sizes[MODEL]

    def check_rows(self, rows: int, microbatches: int = 1, *, what: str) -> None:
        """Raises an error if a microbatch's rows can't be split evenly along the mesh's batch axis.

        `what` names the number of rows in the error.
        """
        parts = microbatches * self.sizes[BATCH]
        if rows % parts:
            split = f"{microbatches} microbatches x " if microbatches > 1 else ""
            nearest = max(1, round(rows / parts)) * parts
            raise ConfigurationError(
                f"{what} is {rows}, which {split}`mesh.batch` = {self.sizes[BATCH]} can't share evenly; the nearest "
                f"that fits is {nearest}."
            )

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises an error for patterns that don't fit a task's variables, `shapes` `{path: shape}`."""
        self.layouts.check(shapes)
        self.slot_layouts.check(shapes)

    def check_slots(self, paths: Collection[str]) -> None:
        """Raises an error for unused slot patterns. `paths` are those of parameters with slots of equal shape."""
        self.slot_layouts.check_used(paths, "variable that has a slot of its own shape")

    def __str__(self) -> str:
        return f"{self.sizes[BATCH]}x{self.sizes[MODEL]}"


class OnMesh(NamedTuple):
    """A variable's mesh and axes. They tell layers and optimizers to use operations that DTensor can shard."""

    strategy: Any  # None for an estimate, which inspects a step without the mesh
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
    """Shards variables along `model` by `layouts` (tensor parallel), and rows along `batch` (data parallel).

    `layouts` are pairs: a path pattern, and an axis for each dimension, such as `("*/attention/out/w", "model,-")`. The
    first matching pattern counts. A variable without a match is whole on every device. A slot has the layout of its
    parameter, unless one of `slot_layouts` matches the parameter's path. `output_layouts` are pairs too: a pattern of
    modules' paths, and a layout of their outputs. DTensor infers the layouts of other outputs.
    """
    for name, size in ((BATCH, batch), (MODEL, model)):
        if not is_size(size):
            raise ConfigurationError(f"`mesh.{name}` is {shown(size)}; it counts devices: give 1 or more.")
    sizes = {BATCH: int(batch), MODEL: int(model)}
    slots = Layouts(slot_layouts, sizes, binding="mesh.slot_layouts")
    outputs = Layouts(output_layouts, sizes, binding="mesh.output_layouts")
    return MeshPlan(sizes, Layouts(layouts, sizes), slots, outputs)
