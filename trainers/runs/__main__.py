"""`python -m trainers.runs [--run=]FOLDER ... [--figure=eval/loss] [--json]`

Lists runs by reading their folders. It doesn't import TensorFlow and doesn't disturb a running training.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin("gin", "rich.console", "tensorboard.compat.proto.event_pb2")

import functools
import json
import math
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import ConfigurationError
from trainers.process.application import command_of, refuse, run_app
from trainers.process.flags import parse_flags
from trainers.runs.curves import LETTERS, chart
from trainers.runs.figures import RULE, best, main_figures, sign
from trainers.runs.find import check_figures, find_runs
from trainers.runs.listing import comparison, console_of_stdout, differences, listing
from trainers.runs.read import Run, is_run, read_run

MOST_COMPARED = 8
USAGE = f"""python -m trainers.runs [FOLDER ...] [--figure=eval/loss] [--json]

Lists the runs in and below folders (default: `runs`): state, step, last and best metrics, and time since the last
write. If the folders are runs themselves, up to {MOST_COMPARED}, it also shows differing settings and curves. With
--figure the best run comes first.

{RULE}"""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    return parse_flags(words, _define, usage=USAGE, bare="run")


def _define(flag_values: FlagValues) -> None:
    texts = functools.partial(absl_flags.DEFINE_multi_string, flag_values=flag_values)
    texts("run", [], "the folder of a run, or one with runs below it; `--run=` is optional")
    texts("figure", [], "a metric to list and draw, as split/name; repeat for more")
    absl_flags.DEFINE_boolean("json", False, "print everything as JSON", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Lists and compares the runs that the flags name. Returns the exit code."""
    try:
        paths = find_runs(flags.run)
        runs = sorted(map(read_run, paths), key=lambda each: each.heard)
        check_figures(flags.figure, runs)
    except ConfigurationError as error:
        return refuse(error)
    if flags.figure and sign(flags.figure[0]):
        runs.sort(key=functools.partial(_rank, flags.figure[0]))
    named = bool(flags.run) and len(runs) <= MOST_COMPARED and all(is_run(Path(name)) for name in flags.run)
    if flags.json:
        print(json.dumps({"runs": [*map(_as_json, runs)], "differences": differences(runs)}, indent=2))
    else:
        _show(runs, flags.figure, compared=named)
    return 0


def _rank(name: str, run: Run) -> float:
    """Returns a sort key for `run` by the metric `name`. The best run has the smallest key."""
    found = best(name, run.figures[name]) if name in run.figures else None
    return math.inf if found is None else -sign(name) * found[1]


def _show(runs: Sequence[Run], chosen: Sequence[str], *, compared: bool) -> None:
    console = console_of_stdout()
    ascii_only = not console.encoding.startswith("utf")
    figures = list(dict.fromkeys(chosen)) or main_figures(run.figures for run in runs)
    letters = LETTERS[: len(runs)] if compared else ""
    console.print(listing(runs, figures, now=time.time(), ascii_only=ascii_only, letters=letters))
    for each in runs:
        for text in [*([each.reason] if each.exit_code != 0 and each.reason else []), *each.damage]:
            print(f"{each.name}: {text}")
    if not compared:
        return
    if len(runs) > 1:
        rows = differences(runs)
        console.print()
        if rows:
            console.print(comparison(runs, rows, ascii_only=ascii_only, letters=letters))
        else:
            console.print("Nothing differs in settings, revision, versions or devices.")
    for name in figures:
        curves = {
            letter: each.figures[name] for letter, each in zip(letters, runs, strict=True) if name in each.figures
        }
        if any(curve.finite for curve in curves.values()):
            console.print()
            for line in chart(name, curves, width=min(console.width, 100), ascii_only=ascii_only):
                console.print(line)


def _as_json(run: Run) -> dict[str, Any]:
    figures = {}
    for name, curve in run.figures.items():
        values = [value for _, value in curve.finite]
        found, last = best(name, curve), curve.last
        figures[name] = {
            "last": {"step": last[0], "value": last[1] if math.isfinite(last[1]) else None},
            "best": found and {"step": found[0], "value": found[1]},
            "smallest": min(values, default=None),
            "largest": max(values, default=None),
        }
    return {
        "run": str(run.path),
        "state": run.state,
        "exit_code": run.exit_code,
        "reason": run.reason,
        "step": run.step,
        "steps": run.steps,
        "heard": datetime.fromtimestamp(run.heard, timezone.utc).isoformat(timespec="seconds"),
        "figures": figures,
        "damage": run.damage,
    }


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
