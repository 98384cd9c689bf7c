"""Draws eigenvalues and traces of a run's checkpoints as one SVG file, in the report's style."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.report.style import STYLE
from trainers.report.svg import HEIGHT, WIDTH, Line, chart
from trainers.runs.figures import Curve


def drawn(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns an SVG of two charts by step, of eigenvalues and of the trace; `found` has an entry a checkpoint."""
    steps = tuple(each["step"] for each in found)
    count = min(len(each["eigenvalues"]) for each in found)
    ranks = {f"λ{i + 1}": tuple(each["eigenvalues"][i] for each in found) for i in range(count)}
    charts = []
    for y, name, curves in ((0, "eigenvalues", ranks), (HEIGHT, "trace", {"tr": tuple(x["trace"] for x in found)})):
        lines = [
            Line(label, f"{name}: {label}", i, True, Curve(steps, c)) for i, (label, c) in enumerate(curves.items())
        ]
        charts.append(f'<svg y="{y}" width="{WIDTH}" height="{HEIGHT}">{chart(name, lines)}</svg>')
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * HEIGHT}" font-family="sans-serif">'
    return "\n".join([start, f"<style>{STYLE}</style>", *charts, "</svg>\n"])
