"""`--mode=summary`: lists all variables, with the phases that train each, and where each is stored."""

import math
from collections.abc import Sequence

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from core.distribution.shapes_only import shapes_only
from core.engine import Assembly
from core.engine.plan import Plan
from core.optimizers.narrow_slots import bytes_of_slots
from core.task.trained import Standing, standings
from trainers.session import Session
from trainers.trainer import Trainer

FROZEN, UNTRAINED = "frozen", "untrained"


def run(session: Session) -> int:
    """Prints every variable with its shape and training status, totals, and the plan of training."""
    with shapes_only():
        trainer = session.trainer()
    assembly, settings = trainer.experiment.assembly, trainer.settings
    rows = standings(assembly.task, assembly.task_variables, assembly.phases)
    table = Table("variable", "shape", "dtype", "count", "trained by", "lives on", title=type(assembly.task).__name__)
    table.columns[3].justify = "right"
    for row in rows:
        shape = " × ".join(map(str, row.variable.shape)) or "scalar"
        where = _where(row, assembly)
        table.add_row(row.path, shape, row.variable.dtype.name, f"{_count([row]):,}", _standing(row), where)
    console = Console()
    console.print(table)
    phases = ", ".join(f"{type(plan.phase).__name__} {plan.name}{_said(plan)}" for plan in trainer.train_step.plans)
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
    if remark := assembly.backend.memory_remark(assembly.variables):
        console.print(remark)
    stored, wide = bytes_of_slots(assembly.optimizers.values())
    if stored < wide:
        console.print(f"narrow slots: the optimizers' slots take {stored:,} bytes; in float32, {wide:,}")
    if trainer.train_step.exchange.replicas > 1:
        console.print(_collectives(trainer))
    return 0


def _said(plan: Plan) -> str:
    """Returns a text on the phase's dtype, if it isn't float32."""
    return "" if plan.narrowing.dtype == tf.float32 else f" in {plan.narrowing.dtype.name}"


def _where(row: Standing, assembly: Assembly) -> str:
    return "one device" if id(row.variable) in assembly.one_device_ids else assembly.backend.place_of(row.variable)


def _standing(row: Standing) -> str:
    """Names the phases that train the variable, or says why no phase trains it."""
    if not row.trainable:
        return UNTRAINED
    return FROZEN if row.frozen else ", ".join(row.phases)


def _count(rows: Sequence[Standing]) -> int:
    return sum(math.prod(row.variable.shape) for row in rows)


def _collectives(trainer: Trainer) -> Table:
    """Returns a table of the communication between replicas in one step."""
    trainer.chunk.get_concrete_function()
    table = Table("phase", "what", "dtype", "bytes", title=f"between {trainer.train_step.exchange.replicas} replicas")
    table.columns[-1].justify = "right"
    for entry in trainer.train_step.exchange.ledger.collectives:
        table.add_row(entry.phase, entry.what, entry.dtype, f"{entry.bytes:,}")
    return table
