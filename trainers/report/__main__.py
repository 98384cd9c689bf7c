"""`python -m trainers.report [--run=]FOLDER ... [--out=report.html]`

Writes a page about runs to one file, by reading their folders. It doesn't import TensorFlow.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin("gin", "rich.console", "tensorboard.compat.proto.event_pb2")

import os
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.disk import write_whole
from core.errors import ConfigurationError, NoRoomError, shown
from trainers.errors.exit_report import report
from trainers.process.application import command_of, run_app
from trainers.process.flags import parse_flags
from trainers.report.page import page
from trainers.runs.find import find_runs
from trainers.runs.read import read_run

USAGE = """python -m trainers.report FOLDER [FOLDER ...] [--out=report.html]

Writes one HTML page about the runs in and below these folders: metrics, curves, differing settings, samples, revisions
and devices, faults, and the best run. The file is self-contained and loads nothing from a network."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    flags = parse_flags(words, _define, usage=USAGE, bare="run")
    if not flags.run:
        raise ConfigurationError("no run is given: give a run's folder or a folder of runs, as `runs/digits_mlp`.")
    return flags


def _define(flag_values: FlagValues) -> None:
    absl_flags.DEFINE_multi_string(
        "run", [], "the folder of a run, or one with runs below it; `--run=` is optional", flag_values=flag_values
    )
    absl_flags.DEFINE_string("out", "report.html", "the file that the page is written to", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Writes the page that the flags describe. Returns the exit code."""
    # Through a symbolic link, its target is written.
    out = Path(os.path.realpath(flags.out) if os.path.islink(flags.out) else flags.out)
    try:
        if os.path.exists(out) and not os.path.isfile(out):  # else a device would be replaced
            raise ConfigurationError(
                f"`--out` is {shown(flags.out)}, which isn't a plain file: give another, as `--out=report.html`."
            )
        runs = [read_run(path) for path in find_runs(flags.run)]
        text = page(runs, now=time.time())
        try:
            write_whole({out: text.encode()})
        except OSError as error:
            raise ConfigurationError(
                f"`--out` is {shown(flags.out)}, which can't be written: {error.strerror}. Give a file in an existing "
                "folder, as `--out=report.html`."
            ) from None
    except (ConfigurationError, NoRoomError) as error:
        return report(error, verbose=False)
    print(f"{len(runs)} runs in `{flags.out}`" if len(runs) != 1 else f"{runs[0].name} in `{flags.out}`")
    return 0


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
