"""Workers as one: who is to blame when they fail, and whether all start again."""

import signal
from collections.abc import Callable, Sequence
from typing import BinaryIO

from core.errors import EXIT_CODES, INTERRUPTED, PeerLostError, PreemptedError
from trainers.launch.elastic import Roster
from trainers.launch.processes import Command, Ending, Signals, describe_signal, run_together

LOST, STOPPED = PeerLostError.exit_code, PreemptedError.exit_code
LIKELY: dict[int, str] = {
    signal.SIGKILL: " (if nobody sent it: for want of memory)",
    signal.SIGABRT: " (TensorFlow's C++ gave up, for want of memory maybe: its `native_stderr` log says why)",
}
GO_ON = "The same command goes on from the last checkpoint."


def supervise(
    make_commands: Callable[[], Sequence[Command]],
    *,
    roster: Roster | None = None,
    max_restarts: int,
    deadline: float,
    out: BinaryIO,
    err: BinaryIO,
) -> int:
    """Runs the commands together, again and again while a restart may help; returns the exit code for all of them.

    A `roster` is told who was lost, so that `make_commands` can go by those who are left.
    """
    with Signals() as signals:
        for left in range(max_restarts, -1, -1):
            endings = run_together(make_commands(), deadline=deadline, signals=signals, out=out, err=err)
            failures = [ending for ending in endings if ending.code != 0]
            if not failures:
                return 0
            if signals.received:
                # The others did as they were told.
                failures = [ending for ending in failures if not (may_pass(ending) or ending.code == INTERRUPTED)]
                if not failures:
                    return _stopped(err, signals)
            cause = find_cause(failures)
            if not may_pass(cause):
                return _fail(err, cause.code, f"{describe(cause, deadline)}. Its own words are above.")
            if left:
                told = describe(cause, deadline)
                if roster is not None:
                    roster.lose(failures)
                    if not (roster.enough or _are_put_back(roster, told, deadline, signals, out)):
                        if signals.received:
                            return _stopped(err, signals)
                        return _fail(err, LOST, f"{told}, and {roster.shortage}. {GO_ON}")
                _say(
                    out,
                    f"{told}: starting {roster or 'all workers'} again from the last checkpoint "
                    f"({left - 1} of {max_restarts} restarts left)",
                )
    code = cause.code if cause.code > 0 else LOST
    none_left = f"none of its {max_restarts} restarts is left" if max_restarts else "`--max_restarts` is 0"
    return _fail(err, code, f"{describe(cause, deadline)}, and {none_left}. {GO_ON}")


def _are_put_back(roster: Roster, told: str, deadline: float, signals: Signals, out: BinaryIO) -> bool:
    """Waits for word that those who were lost can start again, and says whether it came."""
    signals.new()  # what came before the line below was for those who ran
    _say(out, f"{told}: {roster.shortage}; waiting {deadline:g} s for a SIGUSR1, by which all can start again")
    came = signals.warned_within(deadline)
    if came:
        roster.restore()
    return came


def find_cause(failures: Sequence[Ending]) -> Ending:
    """Returns why all failed: the first that didn't do so only because another had."""
    for not_yet in ((LOST, STOPPED), (LOST,)):  # to stop is no failure, and all do it together
        for ending in failures:
            if ending.code not in not_yet and not ending.overdue:
                return ending
    # All have lost somebody: who was killed in the end had been hanging all the time.
    return next((ending for ending in failures if ending.overdue), failures[0])


def may_pass(cause: Ending) -> bool:
    """Says if a new start can end better: the machine's failures pass, those of code, configuration and data don't."""
    return cause.code < 0 or cause.code in (LOST, STOPPED)


def describe(cause: Ending, deadline: float) -> str:
    """Says in one line, without a full stop, how the cause ended."""
    if cause.overdue:
        return f"worker {cause.index} hung: it was killed when it hadn't ended {deadline:g} s after another"
    if cause.code < 0:
        return f"worker {cause.index} was killed by {describe_signal(-cause.code)}{LIKELY.get(-cause.code, '')}"
    return f"worker {cause.index} ended with {cause.code} ({EXIT_CODES.get(cause.code, 'none of our exit codes')})"


def _stopped(err: BinaryIO, signals: Signals) -> int:
    return _fail(err, STOPPED, f"stopped by {describe_signal(signals.received[0])}. {GO_ON}")


def _fail(err: BinaryIO, code: int, text: str) -> int:
    _say(err, f"error: {text}")
    return code


def _say(stream: BinaryIO, line: str) -> None:
    stream.write(f"{line}\n".encode())
    stream.flush()
