"""The backend of `MeshStrategy`, and checks for features that a mesh doesn't support, because it is one replica."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.distribution import Backend, Ledger, register
from core.distribution.drift import fingerprints_of, refuse_drift
from core.distribution.shapes_only import asked_for_shapes, made
from core.errors import ConfigurationError
from core.module import named_variables
from core.optimizers import Optimizer
from core.optimizers.narrow_slots import is_narrow
from core.parallel.mesh.outputs import check_outputs, lay_out_outputs
from core.parallel.mesh.plan import BATCH, MeshPlan
from core.parallel.mesh.program import MeshProgram
from core.parallel.mesh.scope import AxesByPath, made_in_layout
from core.parallel.mesh.strategy import MeshStrategy
from core.parallel.mesh.variable import layout
from core.parallel.places import check_places, refuse_sharded
from core.task import Placement, Task, Update

T = TypeVar("T")
_INSTEAD = "On a mesh every device takes part in every phase: leave it out, or train on replicas (`@mirrored()`)."


@register(MeshStrategy, plan=MeshPlan)
class MeshBackend(Backend):
    """The backend of a mesh: several devices that together are one replica."""

    strategy: MeshStrategy
    how = "on a mesh"
    not_compiled = "be cut for the devices of a mesh"
    separable = False
    handed_over_by_any_thread = False
    row_counts_apart = True
    saves_in_parts = True
    one_device_reads = False
    reads_are_local = False

    def __str__(self) -> str:
        """Returns the number of devices along each axis as text, such as "a mesh of 2x4 devices"."""
        return f"a mesh of {self.strategy.plan} devices"

    def make_task(
        self, make: Callable[[], T], *, placements: Mapping[str, Placement] = {}, one_device: Sequence[str] = ()
    ) -> T:
        """Calls `make()`, and returns its task with variables and modules' outputs in the plan's layouts."""

        def axes_in(task: Any) -> AxesByPath:
            check_on_mesh(self.strategy.plan, task, placements=placements, one_device=one_device)
            layouts, variables = self.strategy.plan.layouts, named_variables(task)
            return {path: (variable, layouts.of(path, variable.shape)) for path, variable in variables.items()}

        task: Any = made_in_layout(make, self.strategy, axes_in)
        lay = lambda y, axes: dtensor.relayout(y, layout(self.strategy.mesh, axes))  # noqa: E731
        lay_out_outputs(task, self.strategy.plan.output_layouts, lay)
        return task

    def make_optimizer(self, make: Callable[[], Optimizer], task: Task) -> Optimizer:
        """Calls `make()`, and returns its optimizer. A slot has the plan's layout for it, or that of its parameter."""
        return made_in_layout(make, self.strategy, functools.partial(axes_of_slots, task, self.strategy.plan))

    def make_whole(self, make: Callable[[], T]) -> T:
        """Calls `make()` with each variable stored whole on each device, and returns the result."""
        return made(make, lambda: self.strategy.scope(empty=asked_for_shapes()))

    def kept_once(self) -> AbstractContextManager[Any]:
        """Returns the mesh's default scope: a variable that replicas would share is stored whole on each device."""
        return self.strategy.scope()

    def bytes_per_device(self, variable: tf.Variable) -> int:
        """Returns the number of bytes of one device's shard of `variable`."""
        return self.strategy.bytes_a_device(variable)

    @property
    def local_devices(self) -> Sequence[str]:
        """Lists the devices of this process."""
        return list(self.strategy.mesh.local_devices())

    def place_of(self, variable: tf.Variable) -> str:
        """Returns, as text, the axes along which `variable` is sharded."""
        axes = ",".join(self.strategy.axes_of(variable))
        return f"mesh: {axes}" if axes.strip("-,") else "every device"

    def memory_remark(self, variables: Mapping[str, tf.Variable]) -> str | None:
        """Returns a sentence on the bytes of `variables` that each device holds."""
        found = dict.fromkeys(("task", "optimizer"), 0)
        for path, variable in variables.items():
            found[path.split("/")[0]] += self.bytes_per_device(variable)
        whole = sum(super(MeshBackend, self).bytes_per_device(variable) for variable in variables.values())
        return (
            f"{str(self).removeprefix('a ')}: each holds {found['task']:,} bytes of the task's variables and "
            f"{found['optimizer']:,} of the optimizers'; one device alone would hold {whole:,}"
        )

    def check_optimizers(self, task: Task, optimizers: Sequence[Optimizer]) -> None:
        """Raises a `ConfigurationError` for narrow slots, and for slot patterns that match no slot."""
        check_slots_on_mesh(optimizers)
        slots = [slots_of_shape(task, optimizer).values() for optimizer in optimizers]
        self.strategy.plan.check_slots({path for found in slots for path, _ in found})

    def check_rows(self, rows: int, microbatches: int = 1, *, what: str) -> None:
        """Raises an error if a microbatch's rows can't be split evenly along the mesh's batch axis."""
        self.strategy.plan.check_rows(rows, microbatches, what=what)

    def check_local_steps(self) -> None:
        """Raises a `ConfigurationError` for local steps, because a mesh is one replica."""
        raise ConfigurationError(
            "`Trainer.local_steps` is for replicas that hold a whole copy each, but `Experiment.strategy` is a mesh, "
            "which is one replica: train on replicas (`@mirrored()`), or leave `Trainer.local_steps` out."
        )

    def handed(self, value: tf.Tensor) -> tf.Tensor:
        """Converts a value of the host to a value of the mesh, whole on each device."""
        return self.strategy.handed(value)

    def taken(self, value: Any, dtype: tf.DType) -> Any:
        """In a traced function, converts an argument made by `handed` back to `dtype`."""
        return tf.cast(value, dtype)

    def by_rows(self, value: Any, axis: int) -> Any:
        """Returns `value` with its rows, axis `axis`, sharded along the mesh's batch axis."""
        rows, parts, whole = value.shape[axis], self.strategy.plan.sizes[BATCH], self.strategy.whole
        assert rows % parts == 0, f"{parts} rows of devices can't share {rows}: `MeshPlan.check_rows` was to say so."
        axes = (*whole(value.shape[:axis]), BATCH, *whole(value.shape[axis + 1 :]))
        return dtensor.relayout(value, layout(self.strategy.mesh, axes))

    def around_loop(self) -> AbstractContextManager[Any]:
        """Returns a scope that gives loops unique names. DTensor's names are global to the process."""
        return self.strategy.names()

    def program(self, function: Any, ledger: Ledger) -> Any:
        """Returns a callable for `function`. Operations that are unsafe with DTensor raise an error."""
        return MeshProgram(function, self.strategy, ledger)

    def drift_check(self, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
        """Returns a function that raises a `DriftError` if devices with the same shard of a variable differ.

        The check sends nothing between devices of a process; processes exchange only fingerprints.
        """
        firsts_of = {path: self.strategy.first_alike(v) for path, v in variables.items()}
        alike = {path: x for path, x in firsts_of.items() if len(set(x)) < len(x)}  # the others have no copy
        firsts = np.array(list(alike.values())).T

        @tf.function(autograph=False)
        def fingerprints(parts: Sequence[tf.Tensor]) -> tf.Tensor:
            return fingerprints_of([functools.partial(tf.identity, part) for part in parts])

        def check() -> None:
            if not alike:
                return
            rows = []
            for parts in zip(*(self.strategy.local_parts(variables[path]) for path in alike), strict=True):
                with tf.device(parts[0].device):
                    rows.append(fingerprints(parts))
            table = self.strategy.rows_of_devices(tf.stack(rows)).numpy()
            differs = table != np.take_along_axis(table, firsts, axis=0)
            refuse_drift(differs, "device", "others of the mesh with the same part do", list(alike))

        return check

    def make_process_sum(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a function that sums a value over all processes."""
        return self.strategy.sum_of_processes


def axes_of_slots(task: Task, plan: MeshPlan, optimizer: Optimizer) -> AxesByPath:
    """Returns `{path of slot: (slot, its mesh axes)}` for the slots that are split as their parameter.

    Slots of another shape than their parameter's aren't split.
    """
    slots = slots_of_shape(task, optimizer).items()
    return {own: (slot, plan.slots.of(path, slot.shape)) for own, (path, slot) in slots}


def slots_of_shape(task: Task, optimizer: Optimizer) -> dict[str, tuple[str, tf.Variable]]:
    """Returns `{path of slot: (path of parameter, slot)}` for the slots with the shape of their parameter."""
    paths = {id(variable): path for path, variable in named_variables(task).items()}
    return {
        f"{name}/{path}": (paths[id(parameter)], slot)
        for name, slots in optimizer.slots.items()
        for path, slot in slots.items()
        if (parameter := optimizer.parameters.get(path)) is not None and parameter.shape == slot.shape
    }


def check_on_mesh(
    plan: MeshPlan, task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str]
) -> None:
    """Raises an error for placements, which a mesh doesn't support, and for layout patterns that don't fit `task`."""
    check_places(task, placements=placements, one_device=one_device, instead=_INSTEAD)
    phases = task.phases()
    for phase in phases if isinstance(phases, list | tuple) else ():
        if isinstance(phase, Update) and phase.clip_examples is not None:
            raise ConfigurationError(
                f"phase `{phase.name}` has `clip_examples`, one example at a time, but a mesh shards each microbatch. "
                "Leave it out, or train on replicas (`@mirrored()`)."
            )
    plan.check({path: variable.shape for path, variable in named_variables(task).items()})
    check_outputs(task, plan.output_layouts)


def check_slots_on_mesh(optimizers: Iterable[Optimizer]) -> None:
    """Raises an error for an optimizer with narrow slots: a mesh can't shard their rounding and their blocks.

    Also raises an error for rules with `sharded=True`.
    """
    optimizers = list(optimizers)
    refuse_sharded(optimizers, instead=_INSTEAD)
    for optimizer in optimizers:
        for name, slot in optimizer.variables.items():
            if is_narrow(slot):
                raise ConfigurationError(
                    f"the optimizer stores `{name}` in {slot.dtype.name} (`slots`), whose rounding a mesh can't shard: "
                    "leave `slots` out and shard float32 slots by `mesh.slot_layouts`, or train on replicas "
                    "(`@mirrored()`)."
                )
