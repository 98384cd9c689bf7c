"""Runs a task's phases: gradient accumulation, one reduction over replicas, whole steps, chunks of steps."""

from core.engine.accumulate import Accumulated, accumulate_gradients, compute
from core.engine.apply_update import commit_untrained, reduce_over_replicas
from core.engine.assembly import Assembly, assemble, assemble_task
from core.engine.chunk import make_chunk
from core.engine.loss_scale import LOSS_SCALE, LossScale
from core.engine.policies.measure_update import Watch
from core.engine.policies.skip_bad_steps import NOT_FINITE, SPIKE, BadStep, Skipping
from core.engine.progress import ALL_WELL, Progress
from core.engine.step import StepResult, TrainStep

__all__ = [
    "ALL_WELL",
    "LOSS_SCALE",
    "NOT_FINITE",
    "SPIKE",
    "Accumulated",
    "Assembly",
    "BadStep",
    "LossScale",
    "Progress",
    "Skipping",
    "StepResult",
    "TrainStep",
    "Watch",
    "accumulate_gradients",
    "assemble",
    "assemble_task",
    "commit_untrained",
    "compute",
    "make_chunk",
    "reduce_over_replicas",
]
