"""Supervises workers: if one fails, all are restarted together, provided that a restart may help."""

from collections.abc import Callable, Sequence
from typing import BinaryIO

from core.errors import INTERRUPTED
from trainers.launch.elastic import Roster
from trainers.launch.endings import LOST, STOPPED, describe, describe_signal, find_cause, may_pass, say
from trainers.launch.process_group import Restarts, run_together
from trainers.launch.processes import Command, Signals

GO_ON = "The same command resumes from the last checkpoint."


def supervise(
    make_commands: Callable[[], Sequence[Command]],
    *,
    roster: Roster | None = None,
    max_restarts: int,
    deadline: float,
    out: BinaryIO,
    err: BinaryIO,
) -> int:
    """Runs the commands as one group, and restarts the group while this may help. Returns one exit code.

    A `roster` tracks lost workers, so that `make_commands` starts the remaining ones.
    """
    restarts = Restarts(max_restarts)
    with Signals() as signals:
        while True:
            commands = make_commands()
            endings = run_together(commands, restarts=restarts, deadline=deadline, signals=signals, out=out, err=err)
            failures = [ending for ending in endings if ending.code != 0]
            if not failures:
                return 0
            if signals.received:
                # The others obeyed the signal.
                failures = [ending for ending in failures if not (may_pass(ending) or ending.code == INTERRUPTED)]
                if not failures:
                    return _stopped(err, signals)
            cause = find_cause(failures)
            told = describe(commands[cause.index].name, cause, deadline)
            if not may_pass(cause):
                return _fail(err, cause.code, f"{told}. Its own message is above.")
            if not restarts.take():
                none_left = f"none of its {max_restarts} restarts is left" if max_restarts else "`--max_restarts` is 0"
                return _fail(err, cause.code if cause.code > 0 else LOST, f"{told}, and {none_left}. {GO_ON}")
            if roster is not None:
                roster.lose(failures)
                if not (roster.enough or _are_put_back(roster, told, deadline, signals, out)):
                    if signals.received:
                        return _stopped(err, signals)
                    return _fail(err, LOST, f"{told}, and {roster.shortage}. {GO_ON}")
            say(out, f"{told}: starting {roster or 'all'} again from the last checkpoint ({restarts})")


def _are_put_back(roster: Roster, told: str, deadline: float, signals: Signals, out: BinaryIO) -> bool:
    """Waits `deadline` seconds for a SIGUSR1, which means that all workers can start. Returns whether one came."""
    signals.new()  # discards earlier signals, which were for the workers
    say(out, f"{told}: {roster.shortage}; waiting {deadline:g} s for a SIGUSR1, after which all restart")
    came = signals.warned_within(deadline)
    if came:
        roster.restore()
    return came


def _stopped(err: BinaryIO, signals: Signals) -> int:
    return _fail(err, STOPPED, f"stopped by {describe_signal(signals.received[0])}. {GO_ON}")


def _fail(err: BinaryIO, code: int, text: str) -> int:
    say(err, f"error: {text}")
    return code
