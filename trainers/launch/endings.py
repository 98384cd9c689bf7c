"""Exit causes of processes that run together: the first failure, and whether a restart may help."""

import contextlib
import dataclasses
import signal
from collections.abc import Sequence
from typing import BinaryIO

from core.errors import EXIT_CODES, PeerLostError, PreemptedError

LOST, STOPPED = PeerLostError.exit_code, PreemptedError.exit_code
LIKELY: dict[int, str] = {
    signal.SIGKILL: " (if not sent on purpose: out of memory)",
    signal.SIGABRT: " (TensorFlow's C++ code aborted, maybe out of memory: its `native_stderr` log says why)",
}


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended. A negative `code` is the number of the signal that killed the process."""

    index: int  # its index among all commands
    code: int
    overdue: bool = False  # killed because it didn't end when the others had


def find_cause(failures: Sequence[Ending]) -> Ending:
    """Returns the failure that caused the other failures."""
    for not_yet in ((LOST, STOPPED), (LOST,)):  # a stop is no failure, and all processes do it
        for ending in failures:
            if ending.code not in not_yet and not ending.overdue:
                return ending
    # All report a lost peer: the one killed at the end had been hanging.
    return next((ending for ending in failures if ending.overdue), failures[0])


def may_pass(ending: Ending) -> bool:
    """Returns whether a restart may help: yes after machine failures, no after errors of code, settings or data."""
    return ending.code < 0 or ending.code in (LOST, STOPPED)


def describe(name: str, ending: Ending, deadline: float) -> str:
    """Describes in one line, without a full stop, how the process `name` ended."""
    if ending.overdue:
        return f"{name} hung: it was killed {deadline:g} s after another had ended"
    if ending.code < 0:
        return f"{name} was killed by {describe_signal(-ending.code)}{LIKELY.get(-ending.code, '')}"
    return f"{name} ended with {ending.code} ({EXIT_CODES.get(ending.code, 'none of our exit codes')})"


def say(stream: BinaryIO, line: str) -> None:
    """Writes a line and flushes it."""
    stream.write(f"{line}\n".encode())
    stream.flush()


def describe_signal(number: int) -> str:
    """Returns `SIGKILL` for 9."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
