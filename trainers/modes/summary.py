"""`--mode=summary`: what is trained, and by which phases, what isn't, and where all of it lives."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from core.distribution import MeshStrategy
from core.engine import Assembly
from core.engine.abstract import shapes_only
from core.task.trained import Standing, standings
from trainers.session import Session
from trainers.trainer import Trainer

FROZEN, UNTRAINED = "frozen", "untrained"


def run(session: Session) -> int:
    """Prints every variable with its shape and standing, the totals, and how training would go about it."""
    with shapes_only():
        trainer = session.trainer()
    assembly, settings = trainer.experiment.assembly, trainer.settings
    rows = standings(assembly.task, assembly.phases)
    table = Table("variable", "shape", "dtype", "count", "trained by", "lives on", title=type(assembly.task).__name__)
    table.columns[3].justify = "right"
    for row in rows:
        shape = " × ".join(map(str, row.variable.shape)) or "scalar"
        where = _where(row, assembly)
        table.add_row(row.path, shape, row.variable.dtype.name, f"{_count([row]):,}", _standing(row), where)
    console = Console()
    console.print(table)
    phases = ", ".join(f"{type(phase).__name__} {phase.name}" for phase in assembly.phases)
    trained, frozen = [row for row in rows if row.phases], [row for row in rows if _standing(row) == FROZEN]
    others = len(rows) - len(trained) - len(frozen)
    console.print(
        f"{_count(trained):,} parameters trained, {_count(frozen):,} frozen; {others} variables that aren't for "
        f"training; phases: {phases}"
    )
    console.print(
        f"{trainer.steps:,} steps of {settings.global_batch_size:,} examples in {settings.microbatches} microbatches, "
        f"{trainer.input.chunk_steps} steps a chunk"
    )
    if isinstance(assembly.strategy, MeshStrategy):
        console.print(_bytes_a_device(assembly.strategy, assembly.variables))
    if trainer.train_step.exchange.replicas > 1:
        console.print(_collectives(trainer))
    return 0


def _where(row: Standing, assembly: Assembly) -> str:
    if isinstance(assembly.strategy, MeshStrategy):
        axes = ",".join(assembly.strategy.axes_of(row.variable))
        return f"mesh: {axes}" if axes.strip("-,") else "every device"
    return "one device" if id(row.variable) in assembly.one_device_ids else "every replica"


def _bytes_a_device(strategy: MeshStrategy, variables: Mapping[str, tf.Variable]) -> str:
    """Says how much of what is learnt each device holds."""
    found = dict[str, int]()
    for path, variable in variables.items():
        kind = path.split("/")[0]
        found[kind] = found.get(kind, 0) + strategy.bytes_a_device(variable)
    whole = sum(v.dtype.size * math.prod(v.shape) for v in variables.values())
    return (
        f"mesh of {strategy.plan} devices: each holds {found['task']:,} bytes of the task's variables and "
        f"{found['optimizer']:,} of the optimizers'; one device alone would hold {whole:,}"
    )


def _standing(row: Standing) -> str:
    """Names the phases that train the variable, or says why none does."""
    if not row.trainable:
        return UNTRAINED
    return FROZEN if row.frozen else ", ".join(row.phases)


def _count(rows: Sequence[Standing]) -> int:
    return sum(math.prod(row.variable.shape) for row in rows)


def _collectives(trainer: Trainer) -> Table:
    """Tabulates what crosses between the replicas in one step."""
    trainer.chunk.get_concrete_function()
    table = Table("phase", "what", "dtype", "bytes", title=f"between {trainer.train_step.exchange.replicas} replicas")
    table.columns[-1].justify = "right"
    for entry in trainer.train_step.exchange.ledger.collectives:
        table.add_row(entry.phase, entry.what, entry.dtype, f"{entry.bytes:,}")
    return table
