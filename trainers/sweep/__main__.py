"""`python -m trainers.sweep --over='adamw.learning_rate=[1e-3, 3e-3]' --over='seed=[0, 1]' -- <flags of the runs>`

Runs a grid, each point as a process of `python -m trainers.main`. The same command resumes a stopped sweep. This file
doesn't import TensorFlow.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin("gin", "rich.console", "tensorboard.summary.writer.record_writer")

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import EXIT_CODES, INTERRUPTED, ConfigurationError, NoRoomError, PeerLostError, PreemptedError, shown
from trainers import main as command
from trainers.errors.exit_report import report
from trainers.launch.__main__ import parse as parse_launch
from trainers.launch.endings import describe_signal
from trainers.launch.processes import Signals, die_with
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags
from trainers.runs.figures import main_figures
from trainers.runs.find import check_figures
from trainers.runs.listing import age, console_of_stdout
from trainers.runs.read import Run, is_run, read_run
from trainers.sweep.grid import Point, parse_over, points_of
from trainers.sweep.plan import Sweep
from trainers.sweep.pool import Job, run_jobs
from trainers.sweep.summary import groups_of, summary

STOPPED, KILLED = PreemptedError.exit_code, PeerLostError.exit_code
USAGE = f"""python -m trainers.sweep --over='a.b=[1, 2]' --over='seed=[0, 1]' [--at_once=N] -- <flags of trainers.main>
python -m trainers.sweep --over='a.b=[1, 2]' -- <flags of trainers.launch> -- <flags of trainers.main>

Runs trainers.main for each point of a grid, and prints a table of means and standard deviations over the seeds. `seed`
is short for Experiment.seed. Each run has a folder in the sweep's folder, which is the --workdir after the `--`, or
runs/<name of the first gin file>-sweep. The same command resumes the sweep and skips finished runs. If a run fails, the
sweep reports it and continues with the others. With flags of trainers.launch, such as --workers=2, each run is a
cluster on this machine.

exit codes:
  0   all runs have finished
  {STOPPED:<4}a signal stopped them: run it again
  {KILLED:<4}a run was killed
  otherwise the exit code of the first point whose run failed"""


@dataclasses.dataclass(frozen=True)
class Command:
    """The parsed command line."""

    flags: FlagValues
    sweep: Sweep


def parse(words: Sequence[str]) -> Command:
    """Parses the command line into a `Command`; also checks the flags of `trainers.main`."""
    place = words.index("--") if "--" in words else len(words)
    flags = parse_flags(words[:place], _define, usage=USAGE, hint=" Put the flags of `trainers.main` after a `--`.")
    if not flags.over:
        raise ConfigurationError("`--over` is missing: give a parameter and its values, as `--over='seed=[0, 1, 2]'`.")
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
    overs = [parse_over(given) for given in flags.over]
    folder = Path(main_flags.workdir or Path("runs") / f"{Path(main_flags.gin_file[0]).stem}-sweep")
    if is_run(folder):
        raise ConfigurationError(
            f"`{folder}` holds a single run, and a sweep needs a folder for several: give another `--workdir=DIR`."
        )
    return Command(flags, Sweep(overs, points_of(overs), main_flags, folder, launch_words))


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
    texts("figure", [], "a metric for the table, as split/name; repeat for more")
    absl_flags.DEFINE_integer("at_once", 1, "how many runs share this machine", flag_values=flag_values)


def run(parsed: Command) -> int:
    """Runs the points that haven't finished, and prints the table. Returns the exit code."""
    flags, sweep = parsed.flags, parsed.sweep
    start_logging(flags.verbosity)
    try:
        left = [point for point in sweep.points if not sweep.is_finished(point)]
        total = len(sweep.points)
        print(f"{total} runs in `{sweep.folder}`: {total - len(left)} finished before", flush=True)
        if len(left) < total:
            _check_figures(flags.figure, sweep)
        if left and (code := _check(sweep, left)):
            return code
        with Signals() as signals:
            codes = _run(sweep, left, signals, flags) if left else {}
        runs = _finished(sweep)
    except (ConfigurationError, NoRoomError) as error:
        return report(error, verbose=False)
    if runs:
        _show(sweep, runs, flags.figure)
    if signals.received:
        name = describe_signal(signals.received[0])
        print(f"error: stopped by {name}. The same command resumes the sweep.", file=sys.stderr)
        return STOPPED
    failed = next((code for point in left if (code := codes[point.name])), 0)
    return failed if failed >= 0 else KILLED


def _check(sweep: Sweep, points: Sequence[Point]) -> int:
    """Checks all configurations in a separate process, which imports TensorFlow. Returns that process's exit code."""
    request = {"words": sweep.main_words, "points": [point.params for point in points]}
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


def _finished(sweep: Sweep) -> dict[str, Run]:
    """Returns {name of a point: its run} for the finished runs."""
    return {point.name: read_run(sweep.path(point)) for point in sweep.points if sweep.is_finished(point)}


def _check_figures(figures: Sequence[str], sweep: Sweep) -> None:
    """Raises a `ConfigurationError` for a metric that no finished run has. Call it once a run has finished."""
    if figures:
        try:
            check_figures(figures, [*_finished(sweep).values()])
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error} The same command with one of these, or without `--figure`, resumes the sweep."
            ) from None


def _run(sweep: Sweep, points: Sequence[Point], signals: Signals, flags: FlagValues) -> dict[str, int]:
    """Runs the points, and prints a line as each run ends. Returns {name of a point: exit code}."""
    codes: dict[str, int] = {}
    mistakes: list[ConfigurationError] = []

    def ended(job: Job, code: int, seconds: float) -> bool:
        codes[job.name] = code
        number = len(sweep.points) - len(points) + len(codes)
        outcome = _outcome(sweep.folder / job.name, job, code)
        print(f"{number} of {len(sweep.points)}  {job.name}: {outcome} ({age(seconds)})", flush=True)
        if code == 0 and not mistakes:
            try:
                _check_figures(flags.figure, sweep)
            except ConfigurationError as error:
                mistakes.append(error)
        return not mistakes

    with sweep.claimed():
        run_jobs([sweep.job(point) for point in points], at_once=flags.at_once, signals=signals, ended=ended)
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


def _show(sweep: Sweep, runs: Mapping[str, Run], chosen: Sequence[str]) -> None:
    """Prints the table of finished runs."""
    console = console_of_stdout()
    figures = list(dict.fromkeys(chosen)) or main_figures(run.figures for run in runs.values())
    groups = {
        key: [runs.get(point.name) for point in points] for key, points in groups_of(sweep.points, sweep.overs).items()
    }
    console.print()
    console.print(summary(sweep.overs, groups, figures, ascii_only=not console.encoding.startswith("utf")))


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
