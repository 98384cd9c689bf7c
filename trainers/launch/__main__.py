"""`python -m trainers.launch --workers=N [--ps=M] [--max_restarts=R] [--min_workers=K] -- <flags of trainers.main>`

Starts a cluster on one machine: N processes of `python -m trainers.main`, connected by `TF_CONFIG`. The workers end
together, and restart together from the last checkpoint. With `--ps=M` there are also M parameter servers and a chief,
and a worker restarts alone. This file doesn't import TensorFlow.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import dataclasses
import functools
import math
import subprocess
import sys
from collections.abc import Sequence

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import ConfigurationError
from core.storage import is_address
from trainers import main as command
from trainers.launch.commands import served_commands, worker_commands
from trainers.launch.elastic import Roster, read_sharing
from trainers.launch.endings import LOST, STOPPED
from trainers.launch.network import ALONE, choose_network
from trainers.launch.processes import Command
from trainers.launch.supervise import supervise
from trainers.process.application import command_of, refuse, run_app, start_logging
from trainers.process.flags import parse_flags

MOST_WORKERS = 256
USAGE = f"""python -m trainers.launch --workers=N [--ps=M] [--max_restarts=R] [--min_workers=K] -- <flags>

Runs trainers.main, with the flags after the --, as several workers on this machine. The configuration's strategy must
be multi_worker or mesh: add --gin_file=configs/runtime/multi_worker.gin, or mesh.gin. With --ps it must be
parameter_server, and a chief and M parameter servers are started with the N workers; add
--gin_file=configs/runtime/parameter_server.gin.

exit codes:
  0   finished
  {LOST:<4}a worker was killed or hung
  {STOPPED:<4}a signal stopped them all: run it again
  otherwise the exit code of the worker that failed first"""


@dataclasses.dataclass(frozen=True)
class Launch:
    """The parsed command line: the launcher's flags, and the words after `--`, which are flags of `trainers.main`."""

    flags: FlagValues
    main_flags: Sequence[str]


def parse(words: Sequence[str]) -> Launch:
    """Parses the command line into a `Launch`; also checks the flags of `trainers.main`."""
    place = words.index("--") if "--" in words else len(words)
    flags = parse_flags(words[:place], _define, usage=USAGE, hint=" Put the flags of `trainers.main` after a `--`.")
    if flags.ps is not None:
        _check_servers(flags)
    if flags.workers is None:
        raise ConfigurationError("`--workers` is missing: give the number of processes, as `--workers=2`.")
    if flags.workers < 1:
        raise ConfigurationError(f"`--workers` is {flags.workers}; it is a number of processes: give 1 or more.")
    for name in ("workers", "ps"):
        if (flags[name].value or 0) > MOST_WORKERS:
            raise ConfigurationError(
                f"`--{name}` is {flags[name].value}; one machine runs at most {MOST_WORKERS}: give fewer."
            )
    if flags.max_restarts < 0:
        raise ConfigurationError(
            f"`--max_restarts` is {flags.max_restarts}; it is a number of restarts: give 0 or more."
        )
    if flags.min_workers is not None:
        _check_min_workers(flags)
    if not 0 < flags.deadline < math.inf:
        raise ConfigurationError(f"`--deadline` is {flags.deadline:g}; it is a time in seconds: give more than 0.")
    if place == len(words):
        raise ConfigurationError("the flags of `trainers.main` are missing: put them after a separate `--`.")
    main_flags = words[place + 1 :]
    command.parse(main_flags)  # checked here, so that a mistake is shown once
    return Launch(flags, main_flags)


def _check_servers(flags: FlagValues) -> None:
    if flags.ps < 1:
        raise ConfigurationError(
            f"`--ps` is {flags.ps}; it is the number of parameter servers: give 1 or more, or remove the flag."
        )
    if flags.workers is None:
        raise ConfigurationError(
            f"`--ps` is {flags.ps}, but `--workers` is missing: servers only hold the variables; give the number of "
            "workers, as `--workers=2`."
        )
    if flags.min_workers is not None:
        raise ConfigurationError(
            "`--min_workers` has no effect with `--ps`, where the run continues with any remaining worker: remove it."
        )


def _check_min_workers(flags: FlagValues) -> None:
    if not 1 <= flags.min_workers <= flags.workers:
        raise ConfigurationError(
            f"`--min_workers` is {flags.min_workers}; it is the number of workers needed for a restart, out of "
            f"{flags.workers}: give 1 to {flags.workers}."
        )
    if flags["max_restarts"].present and flags.max_restarts == 0:
        raise ConfigurationError(
            "`--min_workers` has no effect with `--max_restarts=0`, which rules out restarts: remove one of them."
        )


def _define(flag_values: FlagValues) -> None:
    number = functools.partial(absl_flags.DEFINE_integer, flag_values=flag_values)
    number("workers", None, "number of processes; the first is the chief")
    number("ps", None, "number of parameter servers, in addition to a chief and the workers")
    number("max_restarts", 0, "how often all processes restart if one dies; with --ps, also single workers")
    kept = "restart with the remaining workers, at least this many (--max_restarts is then one for each worker)"
    number("min_workers", None, kept)
    seconds = "seconds for the others to end once one has ended; also the wait for more workers if too few remain"
    absl_flags.DEFINE_float("deadline", 60.0, seconds, flag_values=flag_values)
    reached = "keep the workers in this machine's network, reachable by others"
    absl_flags.DEFINE_boolean("open_ports", False, reached, flag_values=flag_values)


def run(launch: Launch) -> int:
    """Runs the workers. Returns one exit code for the whole cluster."""
    flags = launch.flags
    start_logging(flags.verbosity)
    try:
        roster = make_roster(launch) if flags.min_workers else None
        network = choose_network(open_ports=flags.open_ports)
        if network.line == ALONE and is_address(workdir := command.parse(launch.main_flags).workdir or ""):
            raise ConfigurationError(
                f"`--workdir` is {workdir!r}, but `launch` runs the workers in a network that reaches no server: give "
                "`--open_ports`, and let only the workers' machine reach their ports."
            )
        print(network.line, flush=True)
        if roster is not None and roster.count < flags.workers:
            print(f"starting {roster}", flush=True)

        def make_commands() -> list[Command]:
            if flags.ps:
                return served_commands(flags.workers, flags.ps, launch.main_flags, network)
            return worker_commands(roster.count if roster else flags.workers, launch.main_flags, network)

        return supervise(
            make_commands,
            roster=roster,
            max_restarts=flags.workers if roster and not flags["max_restarts"].present else flags.max_restarts,
            deadline=flags.deadline,
            out=sys.stdout.buffer,
            err=sys.stderr.buffer,
        )
    except ConfigurationError as error:
        return refuse(error)
    except (OSError, subprocess.SubprocessError) as error:  # the latter for errors within the new process
        print(f"error: can't start the workers or read their output: {error}", file=sys.stderr)
        return ConfigurationError.exit_code


def make_roster(launch: Launch) -> Roster:
    """Returns the `Roster`, which tracks the workers left, and how many of them can share a step's batch."""
    sharing = read_sharing(command.parse(launch.main_flags))
    return Roster(launch.flags.workers, fewest=launch.flags.min_workers or 1, sharing=sharing)


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
