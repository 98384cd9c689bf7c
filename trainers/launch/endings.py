"""How processes that belong together have ended: who is to blame, and whether a new start may help."""

import contextlib
import dataclasses
import signal
from collections.abc import Sequence
from typing import BinaryIO

from core.errors import EXIT_CODES, PeerLostError, PreemptedError

LOST, STOPPED = PeerLostError.exit_code, PreemptedError.exit_code
LIKELY: dict[int, str] = {
    signal.SIGKILL: " (if nobody sent it: for want of memory)",
    signal.SIGABRT: " (TensorFlow's C++ gave up, for want of memory maybe: its `native_stderr` log says why)",
}


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended. A negative code is the signal that killed it."""

    index: int  # its place among all commands
    code: int
    overdue: bool = False  # it didn't end when the others had, and was killed for it


def find_cause(failures: Sequence[Ending]) -> Ending:
    """Returns why all failed: the first that didn't do so only because another had."""
    for not_yet in ((LOST, STOPPED), (LOST,)):  # to stop is no failure, and all do it together
        for ending in failures:
            if ending.code not in not_yet and not ending.overdue:
                return ending
    # All have lost somebody: who was killed in the end had been hanging all the time.
    return next((ending for ending in failures if ending.overdue), failures[0])


def may_pass(ending: Ending) -> bool:
    """Says if a new start can end better: the machine's failures pass, those of code, configuration and data don't."""
    return ending.code < 0 or ending.code in (LOST, STOPPED)


def describe(name: str, ending: Ending, deadline: float) -> str:
    """Says in one line, without a full stop, how a process of this name ended."""
    if ending.overdue:
        return f"{name} hung: it was killed when it hadn't ended {deadline:g} s after another"
    if ending.code < 0:
        return f"{name} was killed by {describe_signal(-ending.code)}{LIKELY.get(-ending.code, '')}"
    return f"{name} ended with {ending.code} ({EXIT_CODES.get(ending.code, 'none of our exit codes')})"


def say(stream: BinaryIO, line: str) -> None:
    """Writes a line at once."""
    stream.write(f"{line}\n".encode())
    stream.flush()


def describe_signal(number: int) -> str:
    """Returns `SIGKILL` for 9."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
