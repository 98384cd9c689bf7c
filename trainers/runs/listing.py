"""Tables of runs: their status, and how their settings differ."""

import sys
from collections.abc import Mapping, Sequence

from rich.box import ASCII, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.errors import as_said
from trainers.runs.compare import MISSING
from trainers.runs.figures import last_and_best
from trainers.runs.read import FAILED, FINISHED, NEVER_BEGAN, RUNNING, Run

STYLES = {FINISHED: "green", RUNNING: "bold cyan", FAILED: "bold red", NEVER_BEGAN: "red"}
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def console_of_stdout() -> Console:
    """Returns a console that doesn't truncate lines if stdout is a pipe, which has no width."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 10_000)


def table(columns: Sequence[str], *, ascii_only: bool) -> Table:
    made = Table(box=ASCII if ascii_only else SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        made.add_column(Text(column), overflow="fold")
    return made


def listing(runs: Sequence[Run], figures: Sequence[str], *, now: float, ascii_only: bool, letters: str = "") -> Table:
    """Returns a table with a row for each run; the run's letter, if there are `letters`, precedes its name."""
    made = table(["run", "state", "step", *figures, "heard"], ascii_only=ascii_only)
    for i, run in enumerate(runs):
        made.add_row(
            Text(f"{letters[i]}  {run.name}" if letters else run.name),
            Text(run.ending, STYLES.get(run.state, "yellow")),
            Text(run.reached),
            *(Text(_figure(run, name)) for name in figures),
            Text(f"{age(now - run.heard)} ago" if run.heard else MISSING),
        )
    return made


def _figure(run: Run, name: str) -> str:
    if name not in run.figures:
        return MISSING
    last, best = last_and_best(name, run.figures[name])
    return f"{last} ({best})" if best else last


def comparison(runs: Sequence[Run], rows: Mapping[str, Sequence[str]], *, ascii_only: bool, letters: str) -> Table:
    """Returns a table with a column for each run and a row for each name whose values differ."""
    made = table(["", *(letters or [run.name for run in runs])], ascii_only=ascii_only)
    for name, values in rows.items():
        made.add_row(Text(as_said(name)), *(Text(as_said(value)) for value in values))
    return made


def age(seconds: float) -> str:
    """Returns a time span in words.

    >>> age(3), age(200), age(86400 * 2.4), age(-5)
    ('3 s', '3 min', '2 d', '0 s')
    """
    name, size = next((unit for unit in UNITS if seconds >= unit[1]), UNITS[-1])
    return f"{max(int(seconds // size), 0)} {name}"
