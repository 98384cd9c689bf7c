"""What runs a task's phases: accumulation, the one reduction, the step, chunks of steps."""

from core.engine.accumulate import Accumulated, accumulate_gradients, compute
from core.engine.assembly import assemble_optimizer, assemble_task, kept_alone
from core.engine.chunk import ALL_WELL, Progress, make_chunk
from core.engine.phases import checked_phases
from core.engine.step import StepResult, TrainStep
from core.engine.write import commit_untrained, reduce_over_replicas

__all__ = [
    "ALL_WELL",
    "Accumulated",
    "Progress",
    "StepResult",
    "TrainStep",
    "accumulate_gradients",
    "assemble_optimizer",
    "assemble_task",
    "checked_phases",
    "commit_untrained",
    "compute",
    "kept_alone",
    "make_chunk",
    "reduce_over_replicas",
]
