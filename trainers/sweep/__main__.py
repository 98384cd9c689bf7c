"""`python -m trainers.sweep --over='adamw.learning_rate=[1e-3, 3e-3]' --over='seed=[0, 1]' -- <flags of the runs>`

Runs a grid or a search, each point as a process of `python -m trainers.main`. The same command resumes a stopped sweep.
This file doesn't import TensorFlow.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin("gin", "rich.console", "tensorboard.compat.proto.event_pb2")

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import (
    EXIT_CODES,
    INTERRUPTED,
    ConfigurationError,
    NoRoomError,
    PeerLostError,
    PreemptedError,
    shown,
    without_password,
)
from trainers import main as command
from trainers.errors.exit_report import report
from trainers.launch.__main__ import parse as parse_launch
from trainers.launch.endings import describe_signal
from trainers.launch.processes import Signals, die_with
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags, refuse_address
from trainers.runs.listing import age, console_of_stdout
from trainers.runs.read import is_run, read_run
from trainers.sweep.grid import Point, parse_over, points_of
from trainers.sweep.plan import Grid, Plan, Sweep
from trainers.sweep.pool import Job, run_jobs
from trainers.sweep.search import Search, read_search

STOPPED, KILLED = PreemptedError.exit_code, PeerLostError.exit_code
USAGE = f"""python -m trainers.sweep --over='a.b=[1, 2]' --over='seed=[0, 1]' [--at_once=N] -- <flags of trainers.main>
python -m trainers.sweep --over='a.b=[1, 2]' -- <flags of trainers.launch> -- <flags of trainers.main>
python -m trainers.sweep --space='a.b=log(1e-4, 1e-1)' --trials=N --figure=eval/loss -- <flags of trainers.main>

Runs trainers.main for each point of a grid, and prints a table of means and standard deviations over the seeds. `seed`
is short for Experiment.seed. Each run has a folder in the sweep's folder, which is the --workdir after the `--`, or
runs/<name of the first gin file>-sweep. The same command resumes the sweep and skips finished runs. If a run fails, the
sweep reports it and continues with the others. With flags of trainers.launch, such as --workers=2, each run is a
cluster on this machine.

With --space or --storage it runs the trials of an Optuna study, each once per seed. A space is log(low, high),
uniform(low, high), int(low, high) or a list. Processes with the same --storage and the same name of the sweep's folder
share the study. The trials of a killed process are repeated in their folders.

exit codes:
  0   all runs have finished, or were pruned
  {STOPPED:<4}a signal stopped them: run it again
  {KILLED:<4}a run was killed
  otherwise the exit code of the first point whose run failed"""


@dataclasses.dataclass(frozen=True)
class Command:
    """The parsed command line; `search` is `None` for a plain grid."""

    flags: FlagValues
    sweep: Sweep
    search: Search | None


def parse(words: Sequence[str]) -> Command:
    """Parses the command line into a `Command`; also checks the flags of `trainers.main`."""
    place = words.index("--") if "--" in words else len(words)
    flags = parse_flags(words[:place], _define, usage=USAGE, hint=" Put the flags of `trainers.main` after a `--`.")
    if not flags.over and not flags.space:
        raise ConfigurationError(
            "`--over` is missing: give a parameter and its values, as `--over='seed=[0, 1, 2]'`, or a `--space`."
        )
    if flags.at_once < 1:
        raise ConfigurationError(f"`--at_once` is {flags.at_once}; give a number of runs, 1 or more.")
    if figure := next((each for each in flags.figure if "/" not in each), None):
        raise ConfigurationError(f"`--figure` is {shown(figure)}: give a split and a name, as `--figure=eval/loss`.")
    if place == len(words):
        raise ConfigurationError("the flags of `trainers.main` are missing: put them after a separate `--`.")
    launch_words, main_words = _split(words[place + 1 :])
    main_flags = command.parse(main_words)
    if main_flags.mode != "train" or main_flags.eager:
        given = f"--mode={main_flags.mode}" if main_flags.mode != "train" else "--eager"
        raise ConfigurationError(f"`{given}` has no effect in a sweep, whose runs train: remove it.")
    refuse_address(main_flags, "workdir")
    overs = [parse_over(given) for given in flags.over]
    folder = Path(main_flags.workdir or Path("runs") / f"{Path(main_flags.gin_file[0]).stem}-sweep")
    if is_run(folder):
        raise ConfigurationError(
            f"`{folder}` holds a single run, and a sweep needs a folder for several: give another `--workdir=DIR`."
        )
    points = points_of(overs)
    return Command(flags, Sweep(overs, points, main_flags, folder, launch_words), read_search(flags, overs, folder))


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the flags of `trainers.launch`, which precede a second `--`, and those of `trainers.main`."""
    if "--" not in words:
        return (), words
    parse_launch(words)  # checked here, so that a mistake is shown once
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _define(flag_values: FlagValues) -> None:
    texts = functools.partial(absl_flags.DEFINE_multi_string, flag_values=flag_values)
    texts("over", [], "a parameter or macro with a list of its values; repeat for more")
    texts("space", [], "a parameter or macro with log(a, b), uniform(a, b), int(a, b) or a list; repeat for more")
    texts("figure", [], "a metric for the table, as split/name; repeat for more. A search improves it")
    text = functools.partial(absl_flags.DEFINE_string, default=None, flag_values=flag_values)
    text("sampler", help="how a search draws values: tpe, random, cmaes or grid; default: tpe, or grid without --space")
    text("pruner", help="stops trials that are worse than others: median or hyperband; default: none")
    text(
        "storage", help="the study's database, as sqlite:///FILE, or a journal's file; default: study.db in the folder"
    )
    absl_flags.DEFINE_integer(
        "trials", None, "the number of trials of a search, of all processes", flag_values=flag_values
    )
    absl_flags.DEFINE_integer("at_once", 1, "how many runs share this machine", flag_values=flag_values)


def run(parsed: Command) -> int:
    """Runs the points that haven't finished, and prints the table. Returns the exit code."""
    flags, sweep, search = parsed.flags, parsed.sweep, parsed.search
    start_logging(flags.verbosity)
    try:
        plan: Plan
        if search:
            from trainers.sweep.study import Study, is_over  # needs Optuna

            examples = [] if is_over(search) else search.examples()
            if examples and (code := _check(sweep, examples)):
                return code  # before the study is created, which would refuse the corrected spaces
            plan = Study(sweep, search)
            print(f"study `{search.name}` in `{without_password(search.storage)}`: {plan.progress()} ended before")
        else:
            plan = Grid(sweep, flags.figure)
            total, examples = len(sweep.points), [point.params for point in plan.left]
            print(f"{total} runs in `{sweep.folder}`: {total - len(examples)} finished before", flush=True)
            if examples and (code := _check(sweep, examples)):
                return code
        codes: dict[str, int] = {}
        signals = Signals()
        if examples:
            with signals:
                codes = _run(sweep, plan, signals, flags.at_once)
        console = console_of_stdout()
        if results := plan.results(ascii_only=not console.encoding.startswith("utf")):
            console.print()
            for each in results:
                console.print(each)
    except (ConfigurationError, NoRoomError) as error:
        return report(error, verbose=False)
    if signals.received:
        name = describe_signal(signals.received[0])
        print(f"error: stopped by {name}. The same command resumes the sweep.", file=sys.stderr)
        return STOPPED
    failed = next((code for code in codes.values() if code), 0)
    return failed if failed >= 0 else KILLED


def _check(sweep: Sweep, points: Sequence[Sequence[str]]) -> int:
    """Checks all configurations in a separate process, which imports TensorFlow. Returns that process's exit code."""
    request = {"words": sweep.main_words, "points": points}
    parent = os.getpid()
    code = subprocess.run(
        [sys.executable, "-m", "trainers.sweep.check"],
        input=json.dumps(request).encode(),
        start_new_session=True,
        preexec_fn=lambda: die_with(parent),
        check=False,
    ).returncode
    if code < 0:
        name = describe_signal(-code)
        print(f"error: {name} killed the check of the configurations. Nothing was run; try again.", file=sys.stderr)
    return code if code >= 0 else KILLED


def _run(sweep: Sweep, plan: Plan, signals: Signals, at_once: int) -> dict[str, int]:
    """Runs the points of a plan, and prints a line as each run ends. Returns {name of a point: exit code}."""
    points: dict[str, Point] = {}
    codes: dict[str, int] = {}  # in the order of the points
    mistakes: list[ConfigurationError] = []

    def next_job() -> Job | None:
        point = plan.next()
        if point is None:
            return None
        points[point.name], codes[point.name] = point, 0
        return sweep.job(point)

    def ended(job: Job, code: int, seconds: float) -> bool:
        outcome = None
        try:
            code, outcome = plan.ended(points[job.name], code)
        except ConfigurationError as error:
            mistakes.append(error)
        codes[job.name] = code
        outcome = outcome or _outcome(sweep.folder / job.name, job, code)
        print(f"{plan.progress()}  {job.name}: {outcome} ({age(seconds)})", flush=True)
        return not mistakes

    with plan.claimed():
        run_jobs(
            next_job, at_once=at_once, signals=signals, ended=ended, stops=lambda job: plan.stops(points[job.name])
        )
    if mistakes:
        raise mistakes[0]
    return codes


def _outcome(path: Path, job: Job, code: int) -> str:
    """Describes how a run ended and, if it failed, where its output is."""
    if code in (0, STOPPED, INTERRUPTED):
        return EXIT_CODES[code]
    if code < 0:
        return f"killed by {describe_signal(-code)}; its output is in `{job.log}`"
    run = read_run(path)
    reason = run.reason if run.exit_code == code else ""  # the file may be an earlier run's
    kind = EXIT_CODES.get(code, "none of our exit codes")
    return f"failed ({code}: {kind}){f': {reason}' if reason else '.'} Its output is in `{job.log}`"


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
