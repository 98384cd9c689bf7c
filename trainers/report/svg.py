"""A chart as inline SVG, coloured by the page's CSS classes."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from trainers.runs.figures import Curve, Point, has_bound
from trainers.runs.scale import Scale, step_label, tick_labels

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 8, 30
COLOURS = 8  # classes `c0` to `c7`
MOST_POINTS = 400  # a curve; `MOST_MARKED` of them as circles
MOST_MARKED = 40
LINE = 13  # the height of a label
Place = Callable[[Point], tuple[float, float]]  # a point of a curve → x, y in the picture


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve: the label at its end, its title, its colour class, and whether it is drawn solid (held out)."""

    label: str
    title: str
    colour: int
    solid: bool
    curve: Curve


def chart(name: str, lines: Sequence[Line]) -> str:
    """Returns an SVG chart of the metric `name`; at least one of `lines` must have a finite value."""
    points = [point for line in lines for point in line.curve.finite]
    values = Scale.of((y for _, y in points), even=has_bound(name))
    steps = Scale.of((x for x, _ in points), even=True)

    def place(point: Point) -> tuple[float, float]:
        x, y = point
        inner = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + steps.place(x) * inner[0], TOP + (1 - values.place(y)) * inner[1]

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)} by step">',
        *_axes(name, values, steps, place),
        *(_drawn(line, place) for line in lines),
        *_end_labels(lines, place),
        "</svg>",
    ]
    return "".join(parts)


def _axes(name: str, values: Scale, steps: Scale, place: Place) -> Iterator[str]:
    ticks = values.ticks()
    for tick, label in zip(ticks, tick_labels(name, ticks), strict=True):
        _, y = place((int(steps.low), tick))
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for tick in steps.ticks():
        if tick >= 0 and tick == int(tick):
            x, _ = place((int(tick), values.low))
            yield f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{step_label(int(tick))}</text>'


def _drawn(line: Line, place: Place) -> str:
    """Returns one curve as SVG, with gaps at non-finite values; draws circles on isolated points and short curves."""
    parts = [f'<g class="c{line.colour % COLOURS}{"" if line.solid else " dashed"}">']
    parts.append(f"<title>{escape(line.title)}</title>")
    for segment in _segments(line.curve):
        places = [place(point) for point in _thinned(segment)]
        if len(places) > 1:
            parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        if len(places) == 1 or (line.solid and len(places) <= MOST_MARKED):
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places]
    return "".join([*parts, "</g>"])


def _end_labels(lines: Sequence[Line], place: Place) -> Iterator[str]:
    """Yields a label for the end of each curve; of two curves with one label, only the held-out curve gets it."""
    held_out = {line.label for line in lines if line.solid}
    labelled = [line for line in lines if line.curve.finite and (line.solid or line.label not in held_out)]
    ends = [(place(line.curve.finite[-1])[1], line) for line in labelled]
    if len(ends) <= (HEIGHT - TOP - BOTTOM) // LINE:  # more don't fit
        for y, line in _apart(ends):
            colour, x = line.colour % COLOURS, WIDTH - RIGHT + 4
            yield f'<text class="end c{colour}" x="{x}" y="{y + 4:.1f}">{escape(line.label)}</text>'


def _segments(curve: Curve) -> Iterator[list[Point]]:
    """Yields the segments of consecutive finite points of a curve."""
    points = zip(curve.steps, curve.values, strict=True)
    for finite, segment in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if finite:
            yield list(segment)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Thins a curve to about `MOST_POINTS` points. Keeps the ends and extremes of each section."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(4 * len(points) / MOST_POINTS)
    kept = []
    for i in range(0, len(points), size):
        part = points[i : i + size]
        some = {part[0], part[-1], min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(some)
    return kept


def _apart(ends: Sequence[tuple[float, Line]]) -> Iterator[tuple[float, Line]]:
    """Returns (vertical position, line) for labels, moved apart so that labels don't overlap."""
    ordered = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for y, _ in ordered:
        places.append(max(y, places[-1] + LINE) if places else y)
    limit = float(HEIGHT - BOTTOM)
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], limit)
        limit = places[i] - LINE
    return zip(places, (line for _, line in ordered), strict=True)
