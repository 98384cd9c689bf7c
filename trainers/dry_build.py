"""What a dry run looks at: a task of shapes alone, on one device, wherever it is to run."""

import copy
from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from core.data import PerReplica, Source, train_chunks
from core.distribution import one_device
from core.distribution.mesh_plan import MeshPlan
from core.engine import Assembly, Progress, TrainStep, assemble, assemble_task, make_chunk
from core.engine.shapes import shapes_only
from core.errors import DataError
from core.module import named_variables
from core.task import Image, Label, Task, Tokens
from trainers.blame import plain
from trainers.experiment import Experiment, made_by
from trainers.settings import Settings

Spec = dict[str, tf.TensorSpec]


class AsTheTaskReads(Source):
    """Stands in for data that isn't there: its examples are of the shapes that the task says it reads."""

    def __init__(self, task: Task, missing: str):
        super().__init__("data that isn't there", size=1 << 40, place="a dry run")
        self._spec = {name: _spec_of(feature) for name, feature in task.reads().items()}
        unknown = [name for name, spec in self._spec.items() if spec is None]
        if unknown or not self._spec:
            what = f"what shape `{unknown[0]}` has" if unknown else "what it reads"
            raise DataError(f"{missing} A dry run could do without, but `{type(task).__name__}` doesn't say {what}.")

    @property
    def spec(self) -> Spec:
        return {name: spec for name, spec in self._spec.items() if spec is not None}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.zeros([*indices.shape, *spec.shape], spec.dtype) for name, spec in self.spec.items()}


class DryBuild:
    """An experiment, as far as shapes tell of it."""

    def __init__(self) -> None:
        """Reads from gin what `Experiment` and `Trainer` would be given."""
        bound: Mapping[str, Any] = gin.get_bindings(Experiment, resolve_references=False)
        given = {name: copy.deepcopy(bound[name]) for name in bound if not name.endswith("_source")}
        strategy = given.get("strategy")
        self.plan = strategy if isinstance(strategy, MeshPlan) else None
        self.strategy: tf.distribute.Strategy = strategy if strategy and not self.plan else one_device()
        self.settings = Settings()
        self._factory, self._seed = given["task"], given.get("seed", 0)
        self._places = {"placements": given.get("placements", {}), "one_device": given.get("one_device", ())}
        with shapes_only():
            self.task = assemble_task(self._make, self.strategy, one_device=self._places["one_device"])
        if self.plan:
            self.plan.check({path: variable.shape for path, variable in named_variables(self.task).items()})
        self.missing: str | None = None  # why the data can't be read, if it can't
        try:
            self.source: Source = copy.deepcopy(bound["train_source"])
            self.task.check_source(self.source)
        except DataError as error:
            self.missing = plain(error)  # without what gin adds
            self.source = AsTheTaskReads(self.task, self.missing)

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    def assembly(self, *, again: bool) -> Assembly:
        """Makes what a step is made of: of the task as it stands now, or of one made `again`."""
        with shapes_only():
            return assemble(self._make if again else lambda: self.task, self.strategy, **self._places)

    def traced(self, assembly: Assembly) -> tuple[TrainStep, Any]:
        """Traces a chunk of steps."""
        stacked = self._chunks(0).element_spec
        if self.plan:
            self.plan.check_rows(self.settings.global_batch_size, self.settings.microbatches)
        batch = {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in stacked.items()}
        step = TrainStep(assembly, batch, seed=self._seed, steps=self.settings.steps)
        sums = {name: spec.sums_of_update for name, spec in step.specs.items()}
        progress = Progress(sums, strategy=self.strategy)
        spec = PerReplica(self._chunks, self.strategy).element_spec
        return step, make_chunk(step, spec, progress).get_concrete_function()

    def _chunks(self, replica: int) -> tf.data.Dataset:
        return train_chunks(
            self.source,
            global_batch_size=self.settings.global_batch_size,
            microbatches=self.settings.microbatches,
            chunk_steps=self.chunk_steps,
            seed=self._seed,
            replicas=self.replicas,
            replica=replica,
        )

    def cut(self, assembly: Assembly) -> dict[str, tuple[str, ...]]:
        """Returns along which axes of the mesh each variable is cut, a slot as its parameter or as the plan says."""
        axes = dict.fromkeys(assembly.variables, tuple[str, ...]())
        paths = {id(variable): path for path, variable in named_variables(assembly.task).items()}
        if self.plan:
            for path, variable in named_variables(assembly.task).items():
                axes[f"task/{path}"] = self.plan.layouts.of(path, variable.shape)
            for phase, optimizer in assembly.optimizers.items():
                for slot, variables in optimizer.slots.items():
                    for path, variable in variables.items():
                        parameter = optimizer.parameters.get(path)
                        if parameter is not None and parameter.shape == variable.shape:
                            of = self.plan.slots.of(paths[id(parameter)], variable.shape)
                            axes[f"optimizer/{phase}/{slot}/{path}"] = of
        return axes

    @property
    def chunk_steps(self) -> int:
        return self.settings.steps_per_chunk(self.batch_bytes)

    @property
    def batch_bytes(self) -> int:
        """Returns the bytes of one step's batch, on all devices together."""
        row = sum(spec.dtype.size * spec.shape.num_elements() for spec in self.source.spec.values())
        return self.settings.global_batch_size * row

    def _make(self) -> Task:
        return made_by(self._factory, self._seed)


def _spec_of(feature: object) -> tf.TensorSpec | None:
    if isinstance(feature, Tokens):
        return tf.TensorSpec([feature.length + 1], tf.int32)
    if isinstance(feature, Label):
        return tf.TensorSpec([], tf.int32)
    if isinstance(feature, Image) and feature.shape is not None and None not in feature.shape:
        return tf.TensorSpec(list(feature.shape), tf.float32)
    return None
