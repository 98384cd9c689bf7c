"""Tables of runs: their status, and how their settings differ."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import ASCII, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.errors import as_said
from trainers.runs.figures import last_and_best
from trainers.runs.read import FAILED, FINISHED, NEVER_BEGAN, RUNNING, Run

MISSING = "–"  # the run has no such value


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Returns {name: value of each run} for names whose values differ. Revision, devices and versions come last."""
    bindings = _differing([run.configuration for run in runs])
    return bindings | _differing([_started_with(run.record) for run in runs])


def _differing(tables: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Returns {name: value in each table} for differing values; ignores empty tables of runs that recorded nothing."""
    rows = {}
    for name in sorted({name for table in tables for name in table}):
        if len({table.get(name) for table in tables if table}) > 1:
            rows[name] = [table.get(name, MISSING) for table in tables]
    return rows


def _started_with(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns the revision, devices and versions in a run's `record` as {name: text}."""
    versions, devices = record.get("versions"), record.get("devices")
    found = {"git revision": record.get("git")}
    if isinstance(devices, list):
        found["devices"] = ", ".join(map(str, devices))
    if isinstance(versions, dict):
        found |= {f"version of {name}": version for name, version in versions.items()}
    return {name: str(value) for name, value in found.items() if value is not None}


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
    """Returns a table with a row for each run. The run's letter, if there are `letters`, precedes its name."""
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
