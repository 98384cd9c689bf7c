"""Reports a search, as a table and as JSON."""

import textwrap
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from trainers.performance.diagnose.tables import milliseconds
from trainers.performance.tune.contest import Outcome
from trainers.performance.tune.search import Row, Search

WIDE = 300  # characters of a reason


def table(search: Search) -> Table:
    """Returns a table of what was tried."""
    names = ("setting", "value", "a step", "as fast", "first", "")
    found = Table(*names, title="times as fast as the best before it; how long its first call takes")
    for column in found.columns[2:5]:
        column.justify = "right"
    found.columns[0].no_wrap, found.columns[1].overflow = True, "fold"
    found.add_row("as configured", "", milliseconds(search.configured_seconds))
    for row in search.rows:
        found.add_row(row.setting, row.shown, *_measured(row), row.verdict)
    return found


def progress(row: Row) -> str:
    """Returns a line on the result of a proposal."""
    how = f"{_fast(row.outcome)} times as fast, " if row.outcome else ""
    why = textwrap.shorten(row.why, WIDE, placeholder=" ...")
    return f"`{row.setting} = {row.shown}`: {how}{row.verdict}{': ' if why else ''}{why}"


def winners(search: Search) -> str:
    """Returns the gin lines that help, and their speed-up."""
    if search.total is None:
        return "nothing that was tried is faster than what is configured by more than the noise: leave it as it is"
    if not search.choice.changes:
        return f"together they gain nothing ({_fast(search.total)} times as fast): leave it as it is"
    lines = "\n".join(search.choice.lines)
    return f"# together {_fast(search.total)} times as fast, with the same figures\n{lines}"


def as_json(search: Search, *, complete: bool) -> Mapping[str, Any]:
    """Returns all results as JSON values. `seconds` is the duration of the search."""
    total = search.total
    return {
        "complete": complete,
        "seconds": search.spent,
        "step_seconds": search.configured_seconds,
        "tried": [_row_json(row) for row in search.rows],
        "lines": search.choice.lines,
        "times_as_fast": total.times_as_fast if total and search.choice.changes else None,
    }


def _row_json(row: Row) -> dict[str, Any]:
    outcome = row.outcome
    return {
        "setting": row.setting,
        "value": row.shown,
        "verdict": row.verdict,
        "why": row.why,
        "step_seconds": outcome.seconds if outcome else None,
        "times_as_fast": outcome.times_as_fast if outcome else None,
        "noise": outcome.noise if outcome else None,
        "pairs": list(outcome.ratios) if outcome else [],
        "first_call_seconds": row.traced,
    }


def _measured(row: Row) -> tuple[str, str, str]:
    first = f"{row.traced:.1f} s" if row.traced is not None else ""
    return (milliseconds(row.outcome.seconds), _fast(row.outcome), first) if row.outcome else ("", "", first)


def _fast(outcome: Outcome) -> str:
    return f"{outcome.times_as_fast:.2f} ± {100 * outcome.noise:.0f} %"
