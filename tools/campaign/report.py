"""Outcomes of a part's cases, row by row, and the table of all parts."""

import dataclasses
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

COLUMNS = ("part", "where", "tried", "how it ended", "failures")


@dataclasses.dataclass
class Row:
    """One line of the table."""

    tried: int = 0
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    failures: int = 0


class Tally:
    """Counts the outcomes of one part's cases, which run in several threads."""

    def __init__(self, rows: Sequence[str] = ()) -> None:
        self.rows = {row: Row() for row in rows}
        self.failures: list[str] = []
        self._lock = threading.Lock()

    @property
    def tried(self) -> int:
        """Counts the trials of all rows."""
        return sum(row.tried for row in self.rows.values())

    def count(self, row: str, outcome: str, *, tried: int = 1) -> None:
        """Counts an outcome, and the number of trials that it ends."""
        with self._lock:
            found = self.rows.setdefault(row, Row())
            found.tried += tried
            found.outcomes[outcome] += 1

    def fail(self, row: str, text: str) -> None:
        """Records a failure and prints it at once."""
        with self._lock:
            self.rows.setdefault(row, Row()).failures += 1
            self.failures.append(text)
            print(f"failed: {text}", flush=True)


def print_table(tallies: Mapping[str, Tally], *, markdown: bool) -> None:
    """Prints a line for each part and row, and the failures below them."""
    lines = [
        (part, name, str(row.tried), _outcomes(row), str(row.failures))
        for part, tally in tallies.items()
        for name, row in tally.rows.items()
    ]
    if markdown:
        print(*(f"| {' | '.join(line)} |" for line in [COLUMNS, ["---"] * len(COLUMNS), *lines]), sep="\n")
    else:
        table = Table(*COLUMNS)
        for line in lines:
            table.add_row(*line)
        Console(width=150).print(table)
    for tally in tallies.values():
        for failure in tally.failures:
            print(f"\nfailed: {failure}")


def _outcomes(row: Row) -> str:
    once = set(row.outcomes.values()) == {1}
    return "; ".join(outcome if once else f"{count} {outcome}" for outcome, count in sorted(row.outcomes.items()))
