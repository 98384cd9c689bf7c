"""A table of the operations per example, by module, short enough for a page."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from rich.table import Table

from core.estimate import FORWARD, UPDATE, Place

ROWS = 24  # on a page
OUTSIDE, UPDATES = "outside of modules", "updates"


def operations_table(operations: Mapping[Place, int], examples: int, *, alike: bool) -> Table:
    """Returns a table of the operations of a step of `examples`.

    If blocks are `alike`, they share one row, as `blocks/*`; so do other modules if there would be too many rows.
    """
    paths = sorted({place.module for place in operations if place.way != UPDATE}, key=_natural)
    row_of = next(naming for naming in _namings(paths, alike=alike) if len({*map(naming, paths)}) <= ROWS)
    forward, both = Counter[str](), Counter[str]()
    for place, count in operations.items():
        row = UPDATES if place.way == UPDATE else row_of(place.module) or OUTSIDE
        both[row] += count
        forward[row] += count if place.way == FORWARD else 0
    table = Table("operations of an example", "forward", "with backward")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in dict.fromkeys([*filter(None, map(row_of, paths)), OUTSIDE, UPDATES]):
        if row in both:
            table.add_row(row, *(counted(found[row] / examples) for found in (forward, both)))
    table.add_section()
    table.add_row("together", *(counted(found.total() / examples) for found in (forward, both)))
    return table


def counted(operations: float) -> str:
    """Formats a number of operations.

    >>> counted(12.5), counted(81_920), counted(3.2e12), counted(4e17)
    ('12', '81.92 thousand', '3.2 trillion', '400,000 trillion')
    """
    for unit in ("", " thousand", " million", " billion"):
        if operations < 1000:
            return f"{operations:.4g}{unit}" if unit else f"{operations:.0f}"
        operations /= 1000
    return f"{operations:,.4g} trillion" if operations < 10000 else f"{operations:,.0f} trillion"


def _namings(paths: Iterable[str], *, alike: bool) -> Iterator[Callable[[str], str]]:
    """Yields functions from a module's path to the name of its row. Each function gives fewer rows."""
    if not alike:
        yield lambda path: path
    for depth in range(max((path.count("/") for path in paths), default=0) + 1, -1, -1):
        yield functools.partial(_starred, depth=depth)


def _starred(path: str, *, depth: int) -> str:
    return "/".join("*" if part.isdigit() else part for part in path.split("/")[:depth])


def _natural(path: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in path.split("/")]
