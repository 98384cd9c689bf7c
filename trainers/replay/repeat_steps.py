"""Comes again to a moment of a run, from a checkpoint before it or from the beginning; nothing is written."""

from collections.abc import Callable

import numpy as np

from core.checkpoint import Manifest
from core.engine import ALL_WELL
from trainers.trainer import Trainer


def pass_steps(trainer: Trainer, end: int) -> None:
    """Takes the steps before `end` as training does, but calls no hook."""
    if end > trainer.steps:
        raise ValueError(f"`end` is {end}, but the run has {trainer.steps} steps (`Trainer.steps`): give at most that.")
    if trainer.step < end:
        run = trainer.programs.again
        chunk_steps, chunks = trainer.input.chunk_steps, trainer.input.chunks_from(trainer.step)
        trainer.programs.begin(run, chunks.peek(within=False))  # as training begins
        while trainer.step < end:
            left = chunk_steps - trainer.step % chunk_steps
            trainer.take_steps(next(chunks), min(left, end - trainer.step), run=run)


def come_before_bad_step(trainer: Trainer, manifest: Manifest | None, step: int) -> int:
    """Brings `trainer` to where `step` begins, or an earlier one that leaves what isn't finite; returns which.

    A step whose loss and gradients are finite may still write what isn't: a later one then suffers for it.
    """
    begin = _beginning(trainer, manifest)
    begin()
    first = trainer.step
    pass_steps(trainer, step)
    if _is_well(trainer):
        return step
    begin()
    while _is_well(trainer) and trainer.step < step:
        pass_steps(trainer, trainer.step + 1)
    if _is_well(trainer):
        return step  # this time every step is finite
    step = max(trainer.step - 1, first)
    begin()
    pass_steps(trainer, step)
    return step


def _beginning(trainer: Trainer, manifest: Manifest | None) -> Callable[[], object]:
    """Returns what brings `trainer` to where the way begins, any number of times."""
    at_first = {} if manifest else {path: v.numpy() for path, v in trainer.state.variables.items()}

    def begin() -> None:
        trainer.progress.bad_step.assign(ALL_WELL)
        if manifest:
            trainer.state.restore(manifest)
            return
        trainer.state.step = 0
        for path, value in at_first.items():
            trainer.state.variables[path].assign(value)

    return begin


def _is_well(trainer: Trainer) -> bool:
    """Says whether every step so far was finite, and all that they left."""
    if int(trainer.progress.bad_step) != ALL_WELL:
        return False
    floating = (v for v in trainer.state.variables.values() if v.dtype.is_floating)
    return all(np.isfinite(v.numpy()).all() for v in floating)
