"""The parts of a step as a picture: a bar for each point, as SVG that stands by itself, on a light or dark ground."""

from collections.abc import Sequence
from html import escape

from trainers.performance.diagnose.points import Point
from trainers.performance.diagnose.tell import milliseconds
from trainers.performance.diagnose.times import BACKWARD, BESIDE, COLLECTIVES, FORWARD, HOST, PARTS, SKEW, UPDATE, WAIT

# Told apart by the colour-blind, after Okabe and Ito (2008): warm is what isn't computing.
COLOURS = {
    WAIT: "#d55e00",
    BESIDE: "#e69f00",
    HOST: "#cc79a7",
    FORWARD: "#56b4e9",
    BACKWARD: "#0072b2",
    COLLECTIVES: "#f0e442",
    SKEW: "#999999",
    UPDATE: "#009e73",
}
WIDTH, LEFT, RIGHT, TOP, BAR, ROW = 760, 110, 90, 34, 24, 38
LEGEND_COLUMNS = 4
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1b1b}.ground{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.ground{fill:#16181a}}"
)


def picture(points: Sequence[Point], title: str) -> str:
    """Returns a bar for each point, as long as its step takes, cut into parts."""
    shown = [part for part in PARTS if any(point.times.parts[part] for point in points)]
    legend = TOP + ROW * len(points) + 8
    height = legend + 22 * -(-len(shown) // LEGEND_COLUMNS) + 6
    scale = (WIDTH - LEFT - RIGHT) / max(max(sum(p.times.parts.values()), p.times.step) for p in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for i, point in enumerate(points):
        parts += _bar(point, TOP + ROW * i, scale)
    for i, part in enumerate(shown):
        x, y = 8 + (WIDTH - 16) / LEGEND_COLUMNS * (i % LEGEND_COLUMNS), legend + 22 * (i // LEGEND_COLUMNS)
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="14" height="14" fill="{COLOURS[part]}"/>')
        parts.append(f'<text x="{x + 20:.0f}" y="{y + 12}">{part}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bar(point: Point, y: int, scale: float) -> list[str]:
    middle = y + BAR / 2 + 5
    parts, x = [f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{point.name}</text>'], float(LEFT)
    for part in PARTS:
        seconds = point.times.parts[part]
        if seconds:
            said = f"{part}: {milliseconds(seconds)}, {100 * point.times.shares[part]:.0f} %"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{seconds * scale:.1f}" height="{BAR}" fill="{COLOURS[part]}">'
                f"<title>{said}</title></rect>"
            )
        x += seconds * scale
    return [*parts, f'<text x="{x + 6:.1f}" y="{middle:.0f}">{milliseconds(point.times.step)}</text>']
