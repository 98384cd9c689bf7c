"""The table of verdicts: the share of mutants caught in each folder, by one or two suites."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from tools.mutants.plant import FOLDERS, folder_of
from tools.mutants.run import CAUGHT, LATE, UNCOVERED, Verdict


def caught(verdict: Verdict, long: bool) -> bool:
    """Tells whether plain tests, or all, caught a mutant."""
    return verdict.verdict in CAUGHT and (long or not verdict.long)


def rows(suites: Sequence[Mapping[str, Verdict]], long: bool) -> Iterator[tuple[str, int, list[int]]]:
    """Yields folder, mutants and each suite's number of caught ones, among those that every suite judged."""
    keys = set(suites[0]).intersection(*suites[1:])
    folders = {key: folder_of(suites[0][key].path) for key in keys}
    for folder in [*FOLDERS, "all"]:
        own = [key for key in keys if folder in (folders[key], "all")]
        if own:
            yield folder, len(own), [sum(caught(suite[key], long) for key in own) for suite in suites]


def table(names: Sequence[str], suites: Sequence[Mapping[str, Verdict]], long: bool) -> Table:
    """Returns the table: plain tests, and all of them if long ones ran."""
    shown = Table("folder", "mutants")
    shown.columns[1].justify = "right"
    sides = [(name, which) for which in ((False, True) if long else (False,)) for name in names]
    for name, which in sides:
        shown.add_column(f"{name}{' with long' if which else ''}", justify="right")
    counted = [list(rows(suites, which)) for which in ((False, True) if long else (False,))]
    for lines in zip(*counted, strict=True):
        folder, count = lines[0][:2]
        numbers = [f"{n} ({n / count:.0%})" for line in lines for n in line[2]]
        shown.add_row(folder, str(count), *numbers, end_section=folder == FOLDERS[-1])
    return shown


def lost(new: Mapping[str, Verdict], old: Mapping[str, Verdict], long: bool) -> list[tuple[Verdict, Verdict]]:
    """Returns the mutants that only the old suite catches, with both verdicts."""
    both = [(new[key], old[key]) for key in new if key in old]
    return [(n, o) for n, o in both if caught(o, long) and not caught(n, long)]


def line(verdict: Verdict) -> str:
    """Returns a verdict in one line."""
    by = f" by {verdict.by}" if verdict.by else ""
    tests = "" if verdict.verdict in CAUGHT or verdict.verdict == UNCOVERED else f" {verdict.tried} tests"
    rest = f", {verdict.untried} not tried" if verdict.untried else ""
    word = f"{verdict.verdict}{tests}{rest}{by if verdict.verdict in CAUGHT else ''}"
    edit = f"`{_short(verdict.before)}` -> `{_short(verdict.after)}`"
    return f"{verdict.path}:{verdict.line} {verdict.kind} {edit}: {word}{' while it ran' * (verdict.verdict == LATE)}"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 60 else f"{text[:57]}..."
