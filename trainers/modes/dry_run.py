"""`--mode=dry_run`: memory of each device and communication between devices in a training step."""

from rich.console import Console
from rich.table import Table

from core.estimate import SLOTS, Figures
from trainers.dry_run.budget import choose
from trainers.dry_run.build import DryBuild
from trainers.dry_run.memory import does_it_fit, held_by_a_device, memory_table
from trainers.dry_run.operations import operations_table
from trainers.dry_run.time import how_long
from trainers.experiment import Experiment, refuse_servers
from trainers.options.sizes import size
from trainers.session import Session
from trainers.settings import Settings

SHOWN = 3  # the largest reasons for all-gathers


def run(session: Session) -> int:
    """Prints the estimate, from shapes alone: nothing is computed, and no data is needed."""
    session.bind(required=[Experiment, Settings])
    refuse_servers(
        "`--mode=dry_run` estimates replicas and meshes only, and not parameter servers: leave out the runtime's "
        "`--gin_file`. A worker computes whole steps and needs the memory of a run on one device. See "
        "docs/fit-into-memory.md."
    )
    build = DryBuild.from_gin()
    if build.settings.memory_budget is not None:
        fit = choose(build)
        print(fit.line, flush=True)
        build = build.changed(fit.recompute, fit.microbatches)
    session.configuration.check_consumed()
    figures = build.figures()
    console = Console()
    if build.missing:
        console.print(f"the data isn't there, so batches are as the task reads them: {build.missing}", highlight=False)
    console.print(operations_table(figures.operations, build.settings.global_batch_size, alike=build.repeats.found))
    held = held_by_a_device(build, figures)
    console.print(memory_table(build, held))
    if saved := figures.saved[SLOTS]:
        stored = figures.standing[SLOTS]
        console.print(f"narrow slots: slots take {size(stored)}; in float32, {size(stored + saved)}", highlight=False)
    console.print(does_it_fit(build, figures, held), highlight=False)
    console.print(how_long(build, figures), highlight=False)
    crossing = _crossing(build, figures)
    if crossing.row_count:
        console.print(crossing)
    for because, count in figures.joined.most_common(SHOWN):
        console.print(f"all-gathers of {size(count)} for {because}", highlight=False)
    if figures.unknown:
        console.print(
            "no rule says how these cut what they make, so they are taken to read all whole: "
            f"{', '.join(sorted(figures.unknown))}",
            highlight=False,
        )
    kept = build.settings.keep_checkpoints
    console.print(
        f"a checkpoint takes {size(figures.checkpoint.total())} on disk; {kept} are kept, and one more is there while "
        "it is written",
        highlight=False,
    )
    return 0


def _crossing(build: DryBuild, figures: Figures) -> Table:
    """Returns a table of the communication in one step, or round of local steps."""
    rounds = build.settings.local_steps
    when = f"in a round of {rounds} steps" if rounds else "in one step"
    table = Table(*build.paper.crossing, "times", "bytes", title=f"between {build.paper}, {when}: what each hands in")
    for column in table.columns[-2:]:
        column.justify = "right"
    for kind, count in figures.crossing.items():
        table.add_row(*kind, f"{count:,}", size(figures.bytes[kind]))
    return table
