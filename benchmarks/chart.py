"""Draws lines over a logarithmic axis as SVG, without any dependency."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")  # safe for colour blindness (Okabe and Ito)
WIDTH, HEIGHT, LEFT, TOP, BELOW = 460, 300, 46, 34, 40

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One frame: lines by name, the tick marks below, and their unit. The vertical axis spans 0 to 1."""

    title: str
    lines: Mapping[str, Points]
    marks: Sequence[float]
    unit: str


def svg(panels: Sequence[Panel], *, upright: str) -> str:
    """Returns the panels side by side; lines of the same name share a colour."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    width, height = WIDTH * len(panels), HEIGHT + 20 * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        parts += [f'<g transform="translate({WIDTH * i} 0)">', *_frame(panel, upright), *_lines(panel, colours), "</g>"]
    for i, name in enumerate(names):
        y = HEIGHT + 20 * i
        parts += [_line(LEFT, y, LEFT + 28, y, colours[name], 2.5), _text(LEFT + 36, y + 4, name)]
    return "\n".join([*parts, "</svg>", ""])


def _frame(panel: Panel, upright: str) -> list[str]:
    parts = [_text(LEFT, 14, panel.title, weight="bold"), _text(LEFT, 29, upright, fill="#555")]
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        parts += [_line(LEFT, y, WIDTH - 16, y, "#ddd"), _text(LEFT - 8, y + 4, f"{tenths / 10:g}", anchor="end")]
    for mark in panel.marks:
        x = _x(mark, panel)
        parts += [
            _line(x, _y(0), x, _y(0) + 4, "#555"),
            _text(x, _y(0) + 18, f"{mark:,g}", anchor="middle"),
        ]
    return [*parts, _text((LEFT + WIDTH - 16) / 2, _y(0) + 34, panel.unit, anchor="middle", fill="#555")]


def _lines(panel: Panel, colours: Mapping[str, str]) -> list[str]:
    parts = []
    for name, points in panel.lines.items():
        places = [(_x(x, panel), _y(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}"/>' for x, y in places]
    return parts


def _x(value: float, panel: Panel) -> float:
    low, high = math.log(panel.marks[0]), math.log(panel.marks[-1])
    return LEFT + 14 + (math.log(value) - low) / (high - low) * (WIDTH - LEFT - 44)


def _y(value: float) -> float:
    return HEIGHT - BELOW - 14 - value * (HEIGHT - BELOW - TOP - 24)


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1) -> str:
    place = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", fill: str = "black") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
