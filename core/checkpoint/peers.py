"""Several processes that hold parts of the same variables, and so save together: what one can't do all are told."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from core.checkpoint.files import reason
from core.errors import CheckpointError

Expected = (OSError, tf.errors.OpError)  # what a disk, or a server that holds variables, may answer


class Peers(NamedTuple):
    """Says to a process which of several it is, and how they tell each other.

    `first_text` returns to all of them, who each call it, the text of the first that has one.
    """

    worker: int = 0
    workers: int = 1
    first_text: Callable[[str | None], str | None] = lambda text: text

    def problem(self, error: BaseException | None, temporary: Path | None = None) -> str | None:
        """Returns what went wrong at the first of them that has an `error`; each calls it with its own, or `None`."""
        if not isinstance(error, Expected):
            return self.first_text(None)
        text = reason(error, temporary)
        return self.first_text(f"worker {self.worker}: {text}" if self.workers > 1 else text)


ALONE = Peers()


def refusal(directory: Path, step: int, error: BaseException | None, problem: str | None) -> BaseException:
    """Returns what to raise for a `problem` of one of them, which is this one's `error` where it has one."""
    if isinstance(error, tf.errors.ResourceExhaustedError) and "OOM" in error.message:
        return error  # it is memory that there is none of: the disk isn't to blame
    if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return error  # who keeps the variables is gone: whoever asked for the save knows who that was
    refused = CheckpointError(
        f"The checkpoint of step {step} could not be written to `{directory}`: {problem}. Make room and see that you "
        "may write there, or choose another `--workdir`; the checkpoints from before are untouched."
    )
    refused.__cause__ = error
    return refused
