"""Replays training up to a step, from a checkpoint or from the beginning, without writing."""

from collections.abc import Callable

import numpy as np

from core.checkpoint import Manifest
from core.engine import ALL_WELL
from trainers.trainer import Trainer


def pass_steps(trainer: Trainer, end: int) -> None:
    """Runs the steps from `trainer.step` to `end - 1` as training does, but without hooks."""
    if end > trainer.steps:
        raise ValueError(f"`end` is {end}, but the run has {trainer.steps} steps (`Trainer.steps`): give at most that.")
    if trainer.step < end:
        run = trainer.programs.again
        chunk_steps, chunks = trainer.input.chunk_steps, trainer.input.chunks_from(trainer.step)
        trainer.programs.begin(run, chunks.peek(within=False))  # as training does
        while trainer.step < end:
            left = chunk_steps - trainer.step % chunk_steps
            trainer.take_steps(next(chunks), min(left, end - trainer.step), run=run)


def come_before_bad_step(trainer: Trainer, manifest: Manifest | None, step: int) -> int:
    """Replays training up to `step`, or up to an earlier step that writes non-finite values. Returns that step.

    A step with finite loss and gradients may still write non-finite values, and make a later step fail.
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
        return step  # every step was finite this time
    step = max(trainer.step - 1, first)
    begin()
    pass_steps(trainer, step)
    return step


def _beginning(trainer: Trainer, manifest: Manifest | None) -> Callable[[], object]:
    """Returns a function that resets `trainer` to `manifest`, or to its first state. It can be called repeatedly."""
    at_first = {} if manifest else {path: v.numpy() for path, v in trainer.state.variables.items()}

    def begin() -> None:
        trainer.progress.bad_step.assign(ALL_WELL)
        if manifest:
            trainer.state.restore(manifest)
            return
        trainer.state.begin_again(at_first)

    return begin


def _is_well(trainer: Trainer) -> bool:
    """Returns whether all steps so far succeeded and all variables of `trainer` are finite."""
    if int(trainer.progress.bad_step) != ALL_WELL:
        return False
    floating = (v for v in trainer.state.variables.values() if v.dtype.is_floating)
    return all(np.isfinite(v.numpy()).all() for v in floating)
