"""Draws lines over two logarithmic axes as SVG."""

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # safe for colour blindness
WIDTH, HEIGHT, LEFT, LINE = 480, 300, 60, 18


def log_chart(title: str, places: Sequence[float], lines: Mapping[str, Sequence[float]]) -> str:
    """Returns a picture of `lines`, positive values by name, at `places` in ascending order."""
    values = [y for line in lines.values() for y in line]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)

    def place(x: float, y: float) -> str:
        across = (math.log(x) - math.log(places[0])) / (math.log(places[-1]) - math.log(places[0]))
        up = (math.log10(y) - low) / max(high - low, 1)
        return f"{LEFT + across * (WIDTH - LEFT - 20):.1f},{HEIGHT - 30 - up * (HEIGHT - 60):.1f}"

    def text(at: str, words: str, colour: str = "black") -> str:
        x, y = at.split(",")
        return f'<text x="{x}" y="{y}" fill="{colour}">{escape(words)}</text>'

    height = HEIGHT + LINE * (len(lines) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(f"{LEFT},16", title),
    ]
    for power in range(low, high + 1):
        begin, end = place(places[0], 10.0**power), place(places[-1], 10.0**power)
        parts += [f'<polyline points="{begin} {end}" stroke="#ddd"/>', text(f"8,{begin.split(',')[1]}", f"1e{power}")]
    parts += [text(f"{place(x, 1.0).split(',')[0]},{HEIGHT - 10}", f"{x:g}") for x in places]
    for i, (name, line) in enumerate(lines.items()):
        colour, points = COLOURS[i % len(COLOURS)], " ".join(map(place, places, line))
        parts += [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>']
        parts += [text(f"{LEFT},{HEIGHT + LINE * (i + 1)}", name, colour)]
    return "\n".join([*parts, "</svg>", ""])
