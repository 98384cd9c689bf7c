"""Estimates the memory that a step takes on a device and in the process, and whether this memory suffices."""

from collections.abc import Mapping
from typing import NamedTuple

from rich.table import Table

from core.estimate import ACTIVATIONS, GRADIENTS, HELD, NODES, PARAMETERS, SLOTS, Figures
from core.machine import machine_memory
from trainers.dry_run.build import DryBuild
from trainers.options.sizes import size

MOMENTS = {"passing": "most activations", "passed": "all gradients", "updating": "updating"}
# Further memory of a process, fitted by `python -m benchmarks.memory --estimates` to all shipped configurations:
NODE_BYTES = 25 * 2**10  # for each node of a traced function: Python objects, graphs and executors
RUNNING_BYTES = 40 * 2**20  # threads, kernel code, writers of metrics and checkpoints

Held = Mapping[str, Mapping[str, int]]  # {kind: {moment: bytes on a device}}


class Process(NamedTuple):
    """Resident bytes of a training process."""

    before: int  # before its first step
    step: int  # added by a step
    evaluation: int  # added by an evaluation
    copy: int  # the copy that checkpoints are written from

    @property
    def peak(self) -> int:
        return self.before + max(self.step, self.evaluation) + self.copy


def held_by_a_device(build: DryBuild, figures: Figures) -> Held:
    """Returns {kind: {moment: bytes on a device}}. The keys of `MOMENTS` are the moments of a step."""
    calls = build.settings.parallel_calls
    fetched = build.paper.fetched_chunks + (calls if calls > 1 else 0)
    same = {
        PARAMETERS: figures.standing[PARAMETERS],
        SLOTS: figures.standing[SLOTS],
        "batches": fetched * build.chunk_steps * build.batch_bytes // build.replicas,
    }
    rows = {name: dict.fromkeys(MOMENTS, count) for name, count in same.items()}
    return rows | {
        kind: {moment: figures.held[moment, kind] for moment in MOMENTS} for kind in (GRADIENTS, ACTIVATIONS)
    }


def together(held: Held) -> dict[str, int]:
    """Returns {moment of a step: total bytes on a device}."""
    return {moment: sum(counts[moment] for counts in held.values()) for moment in MOMENTS}


def most(held: Held) -> int:
    """Returns a device's peak memory in bytes."""
    return max(together(held).values())


def memory_table(build: DryBuild, held: Held) -> Table:
    """Returns a table of a device's memory, by kind and by moment of a step."""
    settings = build.settings
    title = f"{type(build.task).__name__}: a device, in a step of {settings.global_batch_size:,} examples"
    if settings.microbatches > 1:
        title += f" in {settings.microbatches:,} microbatches"
    if settings.precision != "float32":
        title += f", computed in {settings.precision}"
    table = Table("bytes", *MOMENTS.values(), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, counts in held.items():
        table.add_row(name, *(size(counts[moment]) for moment in MOMENTS))
    table.add_section()
    table.add_row("together", *map(size, together(held).values()))
    return table


def process(build: DryBuild, figures: Figures, held: Held) -> Process:
    """Estimates the memory of a training process on this machine's CPU, whose devices share memory."""
    copy = sum(figures.standing.values())  # one copy, as replicas hold the same
    standing = build.replicas * copy
    nodes = figures.work[NODES] + figures.evaluation[NODES]
    batches = build.replicas * max(held["batches"].values())  # prefetched
    before = round(build.resident) + RUNNING_BYTES + NODE_BYTES * nodes + standing + batches
    step = build.replicas * most(held) - standing - batches
    return Process(before, step, build.replicas * figures.evaluation[HELD], copy)


def does_it_fit(build: DryBuild, figures: Figures, held: Held) -> str:
    """Returns text on whether training fits into this machine's memory, and what helps if it doesn't."""
    if not build.paper.measures_here:
        return f"It fits where a device has {size(most(held))}, and room for what TensorFlow's allocator keeps."
    memory, found = machine_memory(), process(build, figures, held)
    needed = "an evaluation" if found.evaluation > found.step else "a step"
    takes = (
        f"a process of training takes about {size(found.peak)}, {size(found.peak - found.before)} of it for {needed}"
    )
    if found.peak <= memory:
        return f"It fits: {takes}; this machine has {size(memory)}."
    fewer = "`Evaluator.global_batch_size`" if found.evaluation > found.step else "`Trainer.microbatches`"
    return (
        f"It doesn't fit: {takes}, and this machine has {size(memory)}. Tensors take less with {fewer} of fewer "
        "examples each, variables on a mesh over more machines or GPUs "
        "(docs/choose-a-strategy.md#a-mesh-tensor-parallel)."
    )
