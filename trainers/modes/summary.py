"""`--mode=summary`: what is trained, as a table."""

from rich.console import Console
from rich.table import Table

from core.module import named_variables, parameter_table
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Prints every parameter with its shape, the totals, and how training would go about it."""
    trainer = session.trainer()
    experiment, settings = trainer.experiment, trainer.settings
    rows = parameter_table(experiment.task)
    table = Table("parameter", "shape", "dtype", "count", title=type(experiment.task).__name__)
    table.columns[-1].justify = "right"
    for path, shape, dtype, count in rows:
        table.add_row(path, " × ".join(map(str, shape)) or "scalar", dtype, f"{count:,}")
    console = Console()
    console.print(table)
    others = len(named_variables(experiment.task)) - len(rows)
    phases = ", ".join(f"{type(phase).__name__} {phase.name}" for phase in experiment.assembly.phases)
    console.print(
        f"{sum(row[-1] for row in rows):,} parameters; {others} variables that aren't trained; phases: {phases}"
    )
    console.print(
        f"{trainer.steps:,} steps of {settings.global_batch_size:,} examples in {settings.microbatches} microbatches, "
        f"{trainer.input.chunk_steps} steps a chunk"
    )
    if trainer.train_step.exchange.replicas > 1:
        console.print(_collectives(trainer))
    return 0


def _collectives(trainer: Trainer) -> Table:
    """Tabulates what crosses between the replicas in one step."""
    trainer.chunk.get_concrete_function()
    table = Table("phase", "what", "dtype", "bytes", title=f"between {trainer.train_step.exchange.replicas} replicas")
    table.columns[-1].justify = "right"
    for entry in trainer.train_step.exchange.ledger.collectives:
        table.add_row(entry.phase, entry.what, entry.dtype, f"{entry.bytes:,}")
    return table
