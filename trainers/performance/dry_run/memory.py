"""What a device would hold in a step, what the whole process would, and whether that fits."""

from collections.abc import Mapping
from typing import NamedTuple

from rich.table import Table

from core.estimate import ACTIVATIONS, GRADIENTS, HELD, NODES, PARAMETERS, SLOTS, Figures
from core.machine import machine_memory
from trainers.options.sizes import size
from trainers.performance.dry_run.build import DryBuild

MOMENTS = {"passing": "most activations", "passed": "all gradients", "updating": "updating"}
# What a process takes besides, as `python -m benchmarks.memory --estimates` has found of all that ships:
NODE_BYTES = 25 * 2**10  # of each node of a traced function: Python's, TensorFlow's graphs, and what runs them
RUNNING_BYTES = 40 * 2**20  # threads, the code of kernels, and what writes figures and checkpoints

Held = Mapping[str, Mapping[str, int]]  # bytes of a device by what they are, and by the moment


class Process(NamedTuple):
    """Bytes of memory that a process of training has resident."""

    before: int  # its first step
    step: int  # that a step adds
    evaluation: int  # that one adds
    copy: int  # of what checkpoints are written from, from the first on

    @property
    def peak(self) -> int:
        return self.before + max(self.step, self.evaluation) + self.copy


def held_by_a_device(build: DryBuild, figures: Figures) -> Held:
    """Returns what a device holds at each of the moments that matter."""
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
    """Returns what a device holds in all, by the moment."""
    return {moment: sum(counts[moment] for counts in held.values()) for moment in MOMENTS}


def most(held: Held) -> int:
    """Returns the most that a device holds."""
    return max(together(held).values())


def memory_table(build: DryBuild, held: Held) -> Table:
    """Tabulates what a device holds."""
    settings = build.settings
    title = f"{type(build.task).__name__}: a device, in a step of {settings.global_batch_size:,} examples"
    if settings.microbatches > 1:
        title += f" in {settings.microbatches:,} microbatches"
    table = Table("bytes", *MOMENTS.values(), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, counts in held.items():
        table.add_row(name, *(size(counts[moment]) for moment in MOMENTS))
    table.add_section()
    table.add_row("together", *map(size, together(held).values()))
    return table


def process(build: DryBuild, figures: Figures, held: Held) -> Process:
    """Estimates what a process takes that trains on this machine's CPU, whose devices share its memory."""
    copy = sum(figures.standing.values())  # replicas hold the same
    standing = build.replicas * copy
    nodes = figures.work[NODES] + figures.evaluation[NODES]
    batches = build.replicas * max(held["batches"].values())  # which are fetched before they are needed
    before = round(build.resident) + RUNNING_BYTES + NODE_BYTES * nodes + standing + batches
    step = build.replicas * most(held) - standing - batches
    return Process(before, step, build.replicas * figures.evaluation[HELD], copy)


def does_it_fit(build: DryBuild, figures: Figures, held: Held) -> str:
    """Says it in a sentence."""
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
