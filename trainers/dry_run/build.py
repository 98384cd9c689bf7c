"""Builds a task from shapes alone, on one device, for a dry run of any strategy."""

import copy
import dataclasses
import functools
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gin
import tensorflow as tf

from core.data import Source, Stream
from core.data.replicas import per_replica_spec
from core.distribution.shapes_only import shapes_only
from core.engine import Progress, assemble, assemble_task, make_chunk
from core.errors import DataError
from core.estimate import Figures, Repeats, noting_places
from core.layers.recompute_by_path import Patterns
from core.module import named_modules, named_variables
from core.precision import EVALUATE, Precision
from core.task import Image, Label, Task, Tokens
from core.task.checks import checked_phases
from core.task.trained import standings
from trainers.dry_run.paper import Paper, on_paper
from trainers.errors.exit_report import plain
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment, check_seed, made_by
from trainers.loop.input import decoder_of, reader_of
from trainers.loop.speed import memory_in_use
from trainers.settings import Settings

Spec = dict[str, tf.TensorSpec]


class AsTheTaskReads(Source):
    """Stands in for missing data: examples have the shapes that the task declares."""

    def __init__(self, task: Task, missing: str):
        super().__init__("data that isn't there", size=1 << 40, place="a dry run")
        self._spec = {name: _spec_of(feature) for name, feature in task.reads().items()}
        unknown = [name for name, spec in self._spec.items() if spec is None]
        if unknown or not self._spec:
            what = f"what shape `{unknown[0]}` has" if unknown else "what it reads"
            who = f"`{type(task).__name__}`"
            raise DataError(f"{missing} A dry run doesn't need the data, but {who} doesn't declare {what}.")

    @property
    def spec(self) -> Spec:
        return {name: spec for name, spec in self._spec.items() if spec is not None}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.zeros([*indices.shape, *spec.shape], spec.dtype) for name, spec in self.spec.items()}


class DryBuild:
    """An experiment whose task is built from shapes alone."""

    @classmethod
    def from_gin(cls) -> "DryBuild":
        """Makes a dry build from gin's bindings of `Experiment` and `Trainer`. The strategy's devices may be absent."""
        bound: Mapping[str, Any] = gin.get_bindings(Experiment, resolve_references=False)
        asked = inspect.signature(Experiment).bind_partial(
            **{name: copy.deepcopy(bound[name]) for name in bound if not name.endswith(("_source", "_sources"))}
        )
        asked.apply_defaults()
        given = asked.arguments
        check_seed(given["seed"])
        sources = [bound.get("eval_source"), *bound.get("eval_sources", {}).values()]
        return cls(
            on_paper(given["strategy"]),
            Settings(),
            functools.partial(made_by, given["task"], given["seed"]),
            recompute=given["recompute"],
            seed=given["seed"],
            places={"placements": given["placements"], "one_device": given["one_device"]},
            source=lambda: copy.deepcopy(bound["train_source"]),
            evaluated=lambda: [copy.deepcopy(source) for source in sources if source is not None],
        )

    @classmethod
    def of(cls, experiment: Experiment, settings: Settings) -> "DryBuild":
        """Makes a dry build of a finished experiment."""
        return cls(
            on_paper(experiment.strategy),
            settings,
            experiment.make_plain_task,
            recompute=experiment.recompute,
            seed=experiment.seed,
            places={"placements": experiment.placements, "one_device": experiment.one_device},
            source=lambda: experiment.train_source,
            evaluated=lambda: list(experiment.held_out.values()),
        )

    def __init__(
        self,
        paper: Paper,
        settings: Settings,
        make_task: Callable[[Patterns], Task],
        *,
        recompute: Patterns,
        seed: int,
        places: Mapping[str, Any],
        source: Callable[[], Source | Stream],
        evaluated: Callable[[], list[Source]],
    ):
        """`make_task(recompute)` makes the task on one device. `source` and `evaluated` make the sources."""
        self.paper, self.settings, self._make_task, self.recompute = paper, settings, make_task, recompute
        self.strategy, self._seed, self._places = paper.strategy, seed, places
        self._sources = {"source": source, "evaluated": evaluated}
        with shapes_only():
            one_device_only = self.paper.networks_apart(self._places["one_device"])
            self.task = assemble_task(self._made, self.strategy, one_device=one_device_only)
        self.paper.check(self.task, **self._places)
        self.repeats = Repeats(self.task, self._marks())
        self.paper.lay_out(self.task)
        self.missing: str | None = None  # why the data can't be read, if so
        try:
            self.source = source()
            self.task.check_source(self.source)
        except DataError as error:
            self.missing = plain(error)  # without gin's additions
            self.source = AsTheTaskReads(self.task, self.missing)
        self.evaluated = [] if self.missing else evaluated()
        self.resident = memory_in_use()  # including imports and data

    def changed(self, recompute: Patterns, microbatches: int) -> "DryBuild":
        """Makes another dry build, with these modules that recompute and this number of microbatches."""
        settings = dataclasses.replace(self.settings, microbatches=microbatches)
        places: Any = {"seed": self._seed, "places": self._places, **self._sources}
        return DryBuild(self.paper, settings, self._make_task, recompute=recompute, **places)

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    def figures(self) -> Figures:
        """Measures a step of the whole task."""
        rows, what = self.settings.global_batch_size, "`Trainer.global_batch_size`"
        self.paper.check_rows(rows, self.settings.microbatches, what=what)
        return self.repeats.counted(self._measured)

    def _measured(self) -> Figures:
        """Measures a step of the task in its current state, possibly with fewer blocks."""
        with shapes_only():
            make = (lambda: self.task) if self.repeats.found else self._make
            assembly = assemble(make, self.strategy, **self._places)
        self.paper.lay_out_variables(assembly)
        batch = {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in self._chunk_spec().items()}
        step = self.settings.train_step(assembly, batch, seed=self._seed)
        step.decode_by(decoder_of(self.source, self.settings, step))
        sums = {name: spec.sums_of_update for name, spec in step.specs.items()}
        progress = Progress(sums, strategy=self.strategy)
        spec = per_replica_spec(self._chunk_spec(as_kept=step.decode is not None), self.strategy)
        with shapes_only():
            rounds = step.backend.rounds(step, assembly)
        if rounds:
            assembly = dataclasses.replace(assembly, variables={**assembly.variables, **rounds.variables})
        with noting_places(assembly.task):
            take = rounds or self.settings.policies.skipping(step, assembly)
            chunk = make_chunk(step, spec, progress, take).get_concrete_function()
        figures = self.paper.figures(assembly, step, chunk)
        precision, batches = Precision(self.settings.precision), map(self._batch_to_evaluate, self.evaluated)
        found = [self.paper.of_evaluation(assembly.task, x, precision.narrowing(EVALUATE, x)) for x in batches]
        return dataclasses.replace(figures, evaluation=functools.reduce(operator.or_, found, Counter()))

    def _chunk_spec(self, *, as_kept: bool = False) -> Spec:
        reader = reader_of(self.source, self.settings, seed=self._seed, as_kept=as_kept)
        return reader.chunk_spec(chunk_steps=self.chunk_steps, replicas=self.replicas)

    def _batch_to_evaluate(self, source: Source) -> Spec:
        asked = inspect.signature(Evaluator).bind_partial(**gin.get_bindings(Evaluator))
        asked.apply_defaults()
        rows = min(asked.arguments["global_batch_size"], len(source)) // self.replicas
        return {key: tf.TensorSpec([rows, *spec.shape], spec.dtype) for key, spec in source.spec.items()}

    @property
    def chunk_steps(self) -> int:
        return self.settings.steps_per_chunk(self.batch_bytes)

    @property
    def batch_bytes(self) -> int:
        """Returns the bytes of one step's batch, over all devices."""
        row = sum(spec.dtype.size * spec.shape.num_elements() for spec in self.source.spec.values())
        return self.settings.global_batch_size * row

    def _marks(self) -> Mapping[int, Hashable]:
        """Returns {id of a variable or module: the patterns of the configuration that match it}."""
        rows = standings(self.task, named_variables(self.task), checked_phases(self.task))
        marks: dict[int, Hashable] = {id(row.variable): (row.phases, row.frozen) for row in rows}
        for row in rows:
            marks[id(row.variable)] = (
                marks[id(row.variable)],
                *self.paper.marks_of_variable(row.path, row.variable.shape),
            )
        for path, module in named_modules(self.task).items():
            marks[id(module)] = self.paper.mark_of_module(path)
        return marks

    def _make(self) -> Task:
        return self.paper.lay_out(self._made())

    def _made(self) -> Task:
        return self._make_task(self.recompute)


def _spec_of(feature: object) -> tf.TensorSpec | None:
    if isinstance(feature, Tokens):
        return tf.TensorSpec([feature.length + 1], tf.int32)
    if isinstance(feature, Label):
        return tf.TensorSpec([], tf.int32)
    if isinstance(feature, Image) and feature.shape is not None and None not in feature.shape:
        return tf.TensorSpec(list(feature.shape), tf.float32)
    return None
