"""A strategy's layouts and limits, for estimates. The devices of the strategy needn't exist."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.distribution import backend_of, made_strategy, one_device
from core.engine import Assembly, TrainStep
from core.estimate import Figures, laid_out, lay_out_variables, of_evaluation, on_mesh, on_replicas
from core.parallel.mesh import MeshPlan
from core.parallel.mesh.backend import check_on_mesh, check_slots_on_mesh
from core.parallel.mesh.outputs import lay_out_outputs
from core.precision import Narrowing
from core.task import Placement, Task


class Paper:
    """A strategy with a full copy of the variables for each replica. Its devices are on this machine."""

    crossing: tuple[str, ...] = ("phase", "what")  # columns that identify a collective
    fetched_chunks = 3  # in memory at once: one in use, one waiting, one being made
    devices_are_here = True

    def __init__(self, strategy: Any):
        self.strategy: tf.distribute.Strategy = strategy
        self.devices = int(strategy.num_replicas_in_sync)

    @property
    def measures_here(self) -> bool:
        """Returns whether all devices are CPUs. Measurements on this machine then hold for them."""
        return not any("GPU" in device or "TPU" in device for device in backend_of(self.strategy).local_devices)

    def __str__(self) -> str:
        return "replicas"

    def networks_apart(self, one_device: Sequence[str]) -> Sequence[str]:
        """Returns the networks that are made on one device."""
        return one_device

    def check(self, task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str]) -> None:
        """Raises an error for a task that the strategy can't run."""

    def check_rows(self, rows: int, microbatches: int, *, what: str) -> None:
        """Raises an error for a batch that the devices can't share evenly."""
        backend_of(self.strategy).check_rows(rows, microbatches, what=what)

    def lay_out(self, task: Task) -> Task:
        """Returns the task, with modules whose outputs have the strategy's layouts."""
        return task

    def lay_out_variables(self, assembly: Assembly) -> None:
        """Sets each variable's layout."""

    def marks_of_variable(self, path: str, shape: tf.TensorShape) -> tuple[Hashable, ...]:
        """Returns the layout patterns that match the variable at `path`."""
        return ()

    def mark_of_module(self, path: str) -> Hashable:
        """Returns the layout pattern that matches the module at `path`, or None."""
        return None

    def figures(self, assembly: Assembly, step: TrainStep, chunk: Any) -> Figures:
        """Measures a traced chunk of steps."""
        return on_replicas(assembly, step, chunk)

    def of_evaluation(self, task: Task, batch: Mapping[str, tf.TensorSpec], narrowing: Narrowing) -> Counter[str]:
        """Measures the evaluation of a batch."""
        return of_evaluation(task, batch, narrowing)


class MeshPaper(Paper):
    """A mesh, whose devices may be absent. A step is traced for one device, with layouts."""

    crossing = ("along", "what", "in the pass")
    fetched_chunks = 2  # none waits
    devices_are_here = False
    measures_here = False

    def __init__(self, plan: MeshPlan):
        super().__init__(one_device())
        self.plan, self.devices = plan, plan.devices

    def __str__(self) -> str:
        return f"the {self.devices} devices of a mesh of {self.plan}"

    def networks_apart(self, one_device: Sequence[str]) -> Sequence[str]:
        """Returns an empty sequence, because on a mesh `check` refuses networks on one device."""
        return ()

    def check(self, task: Task, *, placements: Mapping[str, Placement], one_device: Sequence[str]) -> None:
        """Raises an error for a task that can't run on a mesh."""
        check_on_mesh(self.plan, task, placements=placements, one_device=one_device)

    def check_rows(self, rows: int, microbatches: int, *, what: str) -> None:
        """Raises an error for a batch that the mesh's rows can't share evenly."""
        self.plan.check_rows(rows, microbatches, what=what)

    def lay_out(self, task: Task) -> Task:
        """Returns the task, with modules whose outputs have the plan's layouts."""
        lay_out_outputs(task, self.plan.output_layouts, laid_out)
        return task

    def lay_out_variables(self, assembly: Assembly) -> None:
        """Sets each variable's layout. Raises an error for slots that a mesh can't shard."""
        check_slots_on_mesh(assembly.optimizers.values())
        lay_out_variables(assembly, self.plan)

    def marks_of_variable(self, path: str, shape: tf.TensorShape) -> tuple[Hashable, ...]:
        """Returns the layouts of a variable and of its slots."""
        return self.plan.layouts.of(path, shape), self.plan.slots.of(path, shape)

    def mark_of_module(self, path: str) -> Hashable:
        """Returns the layout pattern that matches the module at `path`, or None."""
        return self.plan.output_layouts.pattern_of(path)

    def figures(self, assembly: Assembly, step: TrainStep, chunk: Any) -> Figures:
        """Measures a chunk as partitioned for the mesh."""
        return on_mesh(assembly, chunk, self.plan)

    def of_evaluation(self, task: Task, batch: Mapping[str, tf.TensorSpec], narrowing: Narrowing) -> Counter[str]:
        """Returns nothing: evaluations on a mesh aren't estimated."""
        return Counter()


def on_paper(strategy: Any) -> Paper:
    """Returns a `Paper` for a strategy, or a `MeshPaper` for a mesh or a `MeshPlan`, whose devices may be absent."""
    plan = getattr(strategy, "plan", strategy)
    if isinstance(plan, MeshPlan):
        return MeshPaper(plan)
    return Paper(one_device() if strategy is None else made_strategy(strategy))
