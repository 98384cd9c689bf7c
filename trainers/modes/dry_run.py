"""`--mode=dry_run`: what each device would hold in a step of training, and what would cross between devices."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from core.distribution.layouts import WHOLE
from core.distribution.mesh_plan import BATCH
from core.estimate import (
    ACTIVATIONS,
    GRADIENTS,
    PARAMETERS,
    SLOTS,
    Repeats,
    Spread,
    Taken,
    bytes_of,
    held_in,
    on_device,
    standing,
)
from trainers.dry_build import DryBuild
from trainers.experiment import Experiment
from trainers.session import Session
from trainers.settings import Settings
from trainers.sizes import size

FETCHED = 2  # chunks of batches that are there at once: while one is eaten, the next is made
MOMENTS = {"passing": "most activations", "passed": "all gradients", "updating": "updating"}
SHOWN = 3  # reasons for all-gathers, the largest
Figures = Mapping[Any, int]


def run(session: Session) -> int:
    """Prints it, from shapes alone: nothing is computed, and neither data nor devices need be there."""
    session.bind(required=[Experiment, Settings])
    build = DryBuild()
    session.configuration.check_consumed()
    repeats = Repeats(build.task)

    def measured() -> Figures:
        assembly = build.assembly(again=not repeats.found)
        step, chunk = build.traced(assembly)
        if build.plan is None:
            size_of = on_device(step.exchange.device, bytes_of)
            crossing: dict[Any, int] = Counter()
            for entry in step.exchange.ledger.collectives:
                crossing["count", (entry.phase, entry.what)] += 1
                crossing["bytes", (entry.phase, entry.what)] += entry.bytes
            return {**standing(assembly, lambda _, variable: bytes_of(variable)), **held_in(chunk, size_of), **crossing}
        cut = build.cut(assembly)
        spread = Spread(build.plan.sizes, assembly.variables, cut)
        spread.follow(chunk, BATCH)
        found: dict[Any, int] = {("count", taken): count for taken, count in spread.counts.items()}
        found |= {("bytes", taken): count for taken, count in spread.bytes.items()}
        found |= {("joined", because): count for because, count in spread.joined.items()}
        found |= {("unknown", name): count for name, count in spread.unknown.items()}
        parts = {path: math.prod(build.plan.sizes[a] for a in axes if a != WHOLE) for path, axes in cut.items()}
        held = standing(assembly, lambda path, variable: bytes_of(variable) // parts[path])
        whole = standing(assembly, lambda _, variable: bytes_of(variable))
        return {**held, "checkpoint": sum(whole.values()), **held_in(chunk, spread.size_of), **found}

    figures = repeats.counted(measured)
    console = Console()
    if build.missing:
        console.print(f"the data isn't there, so batches are as the task reads them: {build.missing}", highlight=False)
    console.print(_memory(build, figures))
    crossing = _crossing(build, figures)
    if crossing.row_count:
        console.print(crossing)
    joined = sorted((count, key[1]) for key, count in figures.items() if isinstance(key, tuple) and key[0] == "joined")
    for count, because in joined[: -SHOWN - 1 : -1]:
        console.print(f"all-gathers of {size(count)} for {because}", highlight=False)
    guessed = sorted(key[1] for key in figures if isinstance(key, tuple) and key[0] == "unknown")
    if guessed:
        console.print(
            f"no rule says how these cut what they make, so they are taken to read all whole: {', '.join(guessed)}",
            highlight=False,
        )
    saved = figures.get("checkpoint", figures[PARAMETERS] + figures[SLOTS])
    kept = build.settings.keep_checkpoints
    console.print(
        f"a checkpoint takes {size(saved)} on disk; {kept} are kept, and one more is there while it is written",
        highlight=False,
    )
    console.print(
        "Not counted: what single operations need for themselves, and what TensorFlow's allocator keeps. "
        "docs/dry-run.md says how near that comes.",
        highlight=False,
    )
    return 0


def _memory(build: DryBuild, figures: Figures) -> Table:
    """Tabulates what a device holds at each of the moments that matter."""
    settings = build.settings
    title = f"{type(build.task).__name__}: a device, in a step of {settings.global_batch_size:,} examples"
    if settings.microbatches > 1:
        title += f" in {settings.microbatches:,} microbatches"
    table = Table("bytes", *MOMENTS.values(), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    same = {
        PARAMETERS: figures[PARAMETERS],
        SLOTS: figures[SLOTS],
        "batches": FETCHED * build.chunk_steps * build.batch_bytes // build.replicas,
    }
    rows = {name: dict.fromkeys(MOMENTS, count) for name, count in same.items()}
    rows |= {kind: {moment: figures[moment, kind] for moment in MOMENTS} for kind in (GRADIENTS, ACTIVATIONS)}
    for name, counts in rows.items():
        table.add_row(name, *(size(counts[moment]) for moment in MOMENTS))
    table.add_section()
    table.add_row("together", *(size(sum(counts[moment] for counts in rows.values())) for moment in MOMENTS))
    return table


def _crossing(build: DryBuild, figures: Figures) -> Table:
    """Tabulates what crosses between devices in one step."""
    between = "replicas" if build.plan is None else f"the {build.plan.devices} devices of a mesh of {build.plan}"
    names = ("phase", "what") if build.plan is None else ("along", "what", "in the pass")
    table = Table(*names, "times", "bytes", title=f"between {between}, in one step: what each hands in")
    for column in table.columns[-2:]:
        column.justify = "right"
    for kind in [key[1] for key in figures if isinstance(key, tuple) and key[0] == "count"]:
        names = (kind.axis, kind.kind, kind.where) if isinstance(kind, Taken) else kind
        table.add_row(*names, f"{figures['count', kind]:,}", size(figures["bytes", kind]))
    return table
