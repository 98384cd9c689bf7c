"""`python -m trainers.launch --workers=N [--max_restarts=R] [--deadline=SECONDS] -- <the flags of trainers.main>`

A cluster on one machine: N processes of `python -m trainers.main`, which find each other by `TF_CONFIG`. They end
together, and start together again from the last checkpoint. Nothing here imports TensorFlow.
"""

import argparse
import json
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from core.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    DriftError,
    NotFiniteError,
    PeerLostError,
    PreemptedError,
)
from trainers import main as command
from trainers.launch.processes import Command, Ending, Signals, describe_signal, run_together

LOST, STOPPED = PeerLostError.exit_code, PreemptedError.exit_code
MEANINGS = {
    1: "an error in your own code",
    ConfigurationError.exit_code: "configuration",
    NotFiniteError.exit_code: "not finite",
    DataError.exit_code: "data",
    CheckpointError.exit_code: "checkpoint",
    LOST: "a peer was lost",
    DriftError.exit_code: "replicas drifted apart",
    STOPPED: "stopped and saved",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    flags = parse(sys.argv[1:] if arguments is None else arguments)
    sys.stdout.flush()
    try:
        return supervise(
            lambda: worker_commands(flags.workers, flags.main_flags),
            max_restarts=flags.max_restarts,
            deadline=flags.deadline,
            out=sys.stdout.buffer,
            err=sys.stderr.buffer,
        )
    except BrokenPipeError:
        # Python would try to write the rest when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("error: nobody reads the output any more, and all workers were killed.", file=sys.stderr)
        return ConfigurationError.exit_code
    except OSError as error:
        print(f"error: the workers can't be started or heard: {error}", file=sys.stderr)
        return ConfigurationError.exit_code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags; those of `trainers.main`, which are checked as well, are `main_flags`."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.launch",
        usage="%(prog)s --workers=N [--max_restarts=R] [--deadline=SECONDS] -- <the flags of trainers.main>",
        description="Runs trainers.main as several workers on this machine. The configuration's strategy has to be "
        "multi_worker: add --gin_file=configs/runtime/multi_worker.gin.",
        epilog=f"exit codes: 0 finished; otherwise that of the worker that failed first, {LOST} if it was killed or "
        f"hung, {STOPPED} if a signal stopped them all: run it again",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workers", type=int, required=True, metavar="N", help="how many processes; the first is the chief")
    add("--max_restarts", type=int, default=0, metavar="R", help="how often all start again if one dies (default: 0)")
    add(
        "--deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long the others have to end once one has; then they are killed (default: 60)",
    )
    own = list(arguments)
    place = own.index("--") if "--" in own else len(own)
    flags, unknown = parser.parse_known_args(own[:place])
    if place == len(own):
        parser.error("the flags of `trainers.main` are missing: put them behind a `--` that stands alone.")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}. Those of `trainers.main` come behind the `--`.")
    if flags.workers < 1:
        parser.error(f"`--workers` is {flags.workers}; it counts processes: give 1 or more.")
    if flags.max_restarts < 0:
        parser.error(f"`--max_restarts` is {flags.max_restarts}; it counts restarts: give 0 or more.")
    if not 0 < flags.deadline < math.inf:
        parser.error(f"`--deadline` is {flags.deadline:g}; it is a time in seconds: give more than 0.")
    flags.main_flags = own[place + 1 :]
    command.parse(flags.main_flags)  # here a mistake is shown once, not by every worker
    return flags


def worker_commands(workers: int, main_flags: Sequence[str]) -> list[Command]:
    """One for each worker, in a new cluster on 127.0.0.1."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    return [
        Command(
            [sys.executable, "-m", "trainers.main", *main_flags],
            {
                **os.environ,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}),
                "PYTHONUNBUFFERED": "1",  # lines appear when they are printed, and a killed worker's aren't lost
            },
        )
        for i in range(workers)
    ]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def supervise(
    make_commands: Callable[[], Sequence[Command]], *, max_restarts: int, deadline: float, out: BinaryIO, err: BinaryIO
) -> int:
    """Runs the commands together, again and again while a restart may help; returns the exit code for all of them."""
    with Signals() as signals:
        for left in range(max_restarts, -1, -1):
            endings = run_together(make_commands(), deadline=deadline, signals=signals, out=out, err=err)
            failures = [ending for ending in endings if ending.code != 0]
            if not failures:
                return 0
            if signals.received:
                failures = [ending for ending in failures if not may_pass(ending)]  # the others did as they were told
                if not failures:
                    return _fail(err, STOPPED, f"stopped by {describe_signal(signals.received[0])}. {GO_ON}")
            cause = find_cause(failures)
            if not may_pass(cause):
                return _fail(err, cause.code, f"{describe(cause, deadline)}. Its own words are above.")
            if left:
                out.write(
                    f"{describe(cause, deadline)}: starting all workers again from the last checkpoint "
                    f"({left - 1} of {max_restarts} restarts left)\n".encode()
                )
                out.flush()
    code = cause.code if cause.code > 0 else LOST
    none_left = f"none of its {max_restarts} restarts is left" if max_restarts else "`--max_restarts` is 0"
    return _fail(err, code, f"{describe(cause, deadline)}, and {none_left}. {GO_ON}")


GO_ON = "The same command goes on from the last checkpoint."


def find_cause(failures: Sequence[Ending]) -> Ending:
    """Why all failed: the first that didn't do so only because another had."""
    for not_yet in ((LOST, STOPPED), (LOST,)):  # to stop is no failure, and all do it together
        for ending in failures:
            if ending.code not in not_yet and not ending.overdue:
                return ending
    # All have lost somebody: who was killed in the end had been hanging all the time.
    return next((ending for ending in failures if ending.overdue), failures[0])


def may_pass(cause: Ending) -> bool:
    """Whether a new start can end better: the machine's failures pass, those of code, configuration and data don't."""
    return cause.code < 0 or cause.code in (LOST, STOPPED)


def describe(cause: Ending, deadline: float) -> str:
    """One line without a full stop."""
    if cause.overdue:
        return f"worker {cause.index} hung: it was killed when it hadn't ended {deadline:g} s after another"
    if cause.code < 0:
        return f"worker {cause.index} was killed by {describe_signal(-cause.code)}"
    return f"worker {cause.index} ended with {cause.code} ({MEANINGS.get(cause.code, 'none of our exit codes')})"


def _fail(err: BinaryIO, code: int, text: str) -> int:
    err.write(f"error: {text}\n".encode())
    err.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
