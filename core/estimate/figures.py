"""The cost of one training step. The cost of a deep model is extrapolated from a model with few blocks."""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.engine import Assembly, TrainStep
from core.estimate.kinds import Kind, kinds_in
from core.estimate.liveness import fullest, timeline
from core.estimate.memory import SLOTS, bytes_of, held_in, on_device, standing
from core.estimate.operations import operations_by_place
from core.estimate.places import Place
from core.estimate.sharding import Axes
from core.estimate.spread import Spread
from core.estimate.work import NODES, chain_in, nodes_of, work_of
from core.optimizers.narrow_slots import bytes_of_slots
from core.parallel.mesh.backend import axes_of_slots
from core.parallel.mesh.layouts import WHOLE
from core.parallel.mesh.plan import BATCH, MeshPlan, OnMesh
from core.precision import AS_GIVEN, Narrowing
from core.task import Task
from core.task.loss import weighted_sums

Names = tuple[str, ...]
HELD = "held"


@dataclasses.dataclass(frozen=True)
class Figures:
    """The cost of one step: memory per device in bytes, collectives, and operations."""

    standing: Counter[str]  # bytes of variables, by their kind
    held: Counter[tuple[str, str]]  # bytes of tensors, by the moment and the kind
    checkpoint: Counter[str]  # bytes on disk, by the kind
    crossing: Counter[Names]  # number of collectives, by name
    bytes: Counter[Names]  # that a device sends into these
    joined: Counter[str]  # bytes of all-gathers, by the reason for them
    unknown: Counter[str]  # operations without a rule, by their kind
    operations: Counter[Place]  # floating-point operations of a step on all devices, by origin
    work: Counter[str]  # TensorFlow's overhead: nodes and control flow
    # How often a step starts an operation of each kind, on all replicas; each can be timed alone.
    kinds: Mapping[Kind, float] = dataclasses.field(default_factory=dict)
    chain: Mapping[Kind, float] = dataclasses.field(default_factory=dict)  # the same, along the longest chain
    evaluation: Counter[str] = dataclasses.field(default_factory=Counter)  # cost of an evaluation
    saved: Counter[str] = dataclasses.field(default_factory=Counter)  # bytes by which narrow variables are smaller

    def grown(self, base: "Figures", more: "Figures", times: int) -> "Figures":
        """Returns `self + times * (more - base)`. `more` has one block more than `base`; `times` more are added."""
        found = {}
        for field in dataclasses.fields(Figures):
            so_far, a, b = (getattr(figures, field.name) for figures in (self, base, more))
            found[field.name] = Counter(
                {x: so_far.get(x, 0) + times * (b.get(x, 0) - a.get(x, 0)) for x in dict.fromkeys([*so_far, *b])}
            )
        return Figures(**found)


def on_replicas(assembly: Assembly, step: TrainStep, chunk: Any) -> Figures:
    """Returns the cost of one step of a traced `chunk` on the replicas of its strategy."""
    crossing, handed_in = Counter[Names](), Counter[Names]()
    for entry in step.exchange.ledger.collectives:
        crossing[entry.phase, entry.what] += 1
        handed_in[entry.phase, entry.what] += entry.bytes
    whole = Counter(standing(assembly, lambda _, variable: bytes_of(variable)))
    in_rounds = step.backend.in_rounds
    held = Counter(held_in(chunk, on_device(step.exchange.device, bytes_of), in_rounds=in_rounds))
    weights = [v for optimizer in assembly.optimizers.values() for v in optimizer.parameters.values()]
    kept = Counter({SLOTS: sum(map(bytes_of, weights)) if in_rounds else 0})  # copies from the start of the round
    stored, wide = bytes_of_slots(assembly.optimizers.values())
    return Figures(
        standing=whole + kept,
        held=held,
        checkpoint=whole,
        crossing=crossing,
        bytes=handed_in,
        joined=Counter(),
        unknown=Counter(),
        operations=_operations(chunk),
        work=work_of(chunk.graph),
        kinds=kinds_in(chunk.graph),
        chain=chain_in(chunk.graph),
        saved=Counter({SLOTS: wide - stored}),
    )


def on_mesh(assembly: Assembly, chunk: Any, plan: MeshPlan) -> Figures:
    """Returns the cost of one step on a mesh. `chunk` is traced for one device, after `lay_out_variables`."""
    axes = cut(assembly, plan)
    spread = Spread(plan.sizes, assembly.variables, axes)
    spread.follow(chunk, BATCH)
    parts = {path: math.prod(plan.sizes[axis] for axis in of if axis != WHOLE) for path, of in axes.items()}
    return Figures(
        standing=Counter(standing(assembly, lambda path, variable: bytes_of(variable) // parts[path])),
        held=Counter(held_in(chunk, spread.size_of)),
        checkpoint=Counter(standing(assembly, lambda _, variable: bytes_of(variable))),
        crossing=Counter({dataclasses.astuple(taken): count for taken, count in spread.counts.items()}),
        bytes=Counter({dataclasses.astuple(taken): count for taken, count in spread.bytes.items()}),
        joined=spread.joined,
        unknown=spread.unknown,
        operations=_operations(chunk),
        work=work_of(chunk.graph),
    )


def _operations(chunk: Any) -> Counter[Place]:
    return Counter({place: round(count) for place, count in operations_by_place(chunk.graph).items()})


def of_evaluation(task: Task, batch: Mapping[str, tf.TensorSpec], narrowing: Narrowing = AS_GIVEN) -> Counter[str]:
    """Returns the number of graph nodes, and the peak bytes of tensors, of evaluating a batch like `batch`."""
    evaluate = tf.function(lambda values: weighted_sums(narrowing.call(task.evaluate, values)), autograph=False)
    graph = evaluate.get_concrete_function(dict(batch)).graph
    most = max(held.all for held in fullest(timeline(graph, bytes_of)))
    return Counter({NODES: nodes_of(graph), HELD: most + sum(map(bytes_of, graph.inputs))})


def lay_out_variables(assembly: Assembly, plan: MeshPlan) -> None:
    """Sets each variable's layout on the mesh. A trace then sees how the variables that it reads are sharded."""
    for path, axes in cut(assembly, plan).items():
        assembly.variables[path].on_mesh = OnMesh(None, axes)


def cut(assembly: Assembly, plan: MeshPlan) -> dict[str, Axes]:
    """Returns the mesh axes that shard each variable, `{path: axes}`. A slot has its parameter's or the plan's."""
    known = {id(v): plan.layouts.of(path, v.shape) for path, v in assembly.task_variables.items()}
    for optimizer in assembly.optimizers.values():
        known |= {id(slot): axes for slot, axes in axes_of_slots(assembly.task, plan, optimizer).values()}
    return {path: known.get(id(v), (WHOLE,) * len(v.shape)) for path, v in assembly.variables.items()}
