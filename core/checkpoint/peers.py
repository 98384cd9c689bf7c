"""Processes that save one checkpoint together. If one fails, all of them learn the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from core.checkpoint.files import reason
from core.errors import CheckpointError

Expected = (OSError, tf.errors.OpError)  # errors of a disk, or of a server that holds variables


class Peers(NamedTuple):
    """The index of this process (`worker`), the number of processes (`workers`), and how they communicate.

    Every process calls `first_text(text or None)`. Each call returns the text of the first process that gave one.
    """

    worker: int = 0
    workers: int = 1
    first_text: Callable[[str | None], str | None] = lambda text: text

    def problem(self, error: BaseException | None, temporary: Path | None = None) -> str | None:
        """Returns the reason of the first process that failed. Every process passes its own `error`, or `None`."""
        if not isinstance(error, Expected):
            return self.first_text(None)
        text = reason(error, temporary)
        return self.first_text(f"worker {self.worker}: {text}" if self.workers > 1 else text)


ALONE = Peers()


def refusal(directory: Path, step: int, error: BaseException | None, problem: str | None) -> BaseException:
    """Returns the exception to raise if a process failed with `problem`. Its cause is this process's own `error`."""
    if isinstance(error, tf.errors.ResourceExhaustedError) and "OOM" in error.message:
        return error  # memory is full; the disk isn't to blame
    if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return error  # the process that stores the variables is gone; the caller knows which
    refused = CheckpointError(
        f"The checkpoint of step {step} could not be written to `{directory}`: {problem}. Make room and see that you "
        "may write there, or choose another `--workdir`; the checkpoints from before are untouched."
    )
    refused.__cause__ = error
    return refused
