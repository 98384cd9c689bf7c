"""The interface of a training step: tasks, their phases, and the losses that step functions return."""

from core.rows import all_rows, own_rows
from core.task.loss import Batch, Loss
from core.task.phases import (
    EVERY_REPLICA,
    ONE_DEVICE,
    Compute,
    Phase,
    Placement,
    Update,
    on_every_replica,
    on_one_device,
    when_batch_at_least,
)
from core.task.reads import Feature, Image, Label, Tokens
from core.task.serve import Served
from core.task.statistics import Statistics
from core.task.task import Task

__all__ = [
    "EVERY_REPLICA",
    "ONE_DEVICE",
    "Batch",
    "Compute",
    "Feature",
    "Image",
    "Label",
    "Loss",
    "Phase",
    "Placement",
    "Served",
    "Statistics",
    "Task",
    "Tokens",
    "Update",
    "all_rows",
    "on_every_replica",
    "on_one_device",
    "own_rows",
    "when_batch_at_least",
]
