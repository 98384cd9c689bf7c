"""Curves in a terminal, drawn with braille characters of eight dots each.

Each curve ends in the letter of its run, so the chart is readable without colours.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from trainers.runs.figures import Curve, Point, has_bound
from trainers.runs.scale import Scale, tick_labels

LETTERS = "abcdefgh"
COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_red")
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of U+2800, by row and column
HEIGHT = 14  # lines


def chart(name: str, curves: Mapping[str, Curve], *, width: int, ascii_only: bool) -> list[Text]:
    """Returns the lines of a chart of one metric. `curves` maps the letters of runs to curves.

    Curves without a finite value are skipped; at least one curve must have a finite value.
    """
    points = {letter: curve.finite for letter, curve in curves.items() if curve.finite}
    scale = Scale.of((y for each in points.values() for _, y in each), even=has_bound(name))
    steps = Scale.of((x for each in points.values() for x, _ in each), even=True)
    ticks = scale.ticks()
    labels = {_row(scale, tick): label for tick, label in zip(ticks, tick_labels(name, ticks), strict=True)}
    margin = max(map(len, labels.values()))
    columns = max(width - margin - 3 - len(points), 16)
    cells: list[list[tuple[int, str]]] = [[(0, "")] * columns for _ in range(HEIGHT)]
    for letter, each in points.items():
        for column, row in _dots(each, steps, scale, columns):
            mask, _ = cells[row // 4][column // 2]
            cells[row // 4][column // 2] = mask | DOTS[row % 4][column % 2], COLOURS[LETTERS.index(letter)]
    ends = dict.fromkeys(range(HEIGHT), "")
    for letter, each in points.items():
        ends[_row(scale, each[-1][1])] += letter
    lines = [Text(name, "bold").append(", logarithmic" if scale.logarithmic else "", "dim")]
    for row, line in enumerate(cells):
        drawn = Text().append(f"{labels.get(row, ''):>{margin}} {'|' if ascii_only else '│'}", "dim")
        for mask, colour in line:
            drawn.append(("*" if ascii_only else chr(0x2800 + mask)) if mask else " ", colour)
        for letter in ends[row]:
            drawn.append(letter, COLOURS[LETTERS.index(letter)])
        lines.append(drawn)
    first, last = f"step {max(int(steps.low), 0):,}", f"{int(steps.high):,}"
    lines.append(Text(f"{'':{margin}}  {first} {last:>{columns - len(first) - 1}}", "dim"))
    return lines


def _row(scale: Scale, value: float) -> int:
    return min(int((1 - scale.place(value)) * HEIGHT), HEIGHT - 1)


def _dots(points: Sequence[Point], steps: Scale, scale: Scale, columns: int) -> set[tuple[int, int]]:
    """Returns (column, row) of each dot on straight lines between `points`, counted from the top left."""
    places = [(steps.place(x) * (2 * columns - 1), (1 - scale.place(y)) * (4 * HEIGHT - 1)) for x, y in points]
    dots = {(round(x), round(y)) for x, y in places}
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        count = math.ceil(max(abs(x1 - x0), abs(y1 - y0)))
        dots |= {(round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)) for i in range(count)}
    return dots
