"""Shows a diagnosis: tables for people, JSON for programs, and the parts of a step as an SVG picture."""

from collections.abc import Sequence
from html import escape
from typing import Any

from rich.table import Table

from trainers.options.sizes import size
from trainers.performance.diagnose.points import Efficiency, Point, strong, weak
from trainers.performance.diagnose.times import BACKWARD, BESIDE, COLLECTIVES, FORWARD, HOST, PARTS, SKEW, UPDATE, WAIT
from trainers.performance.diagnose.verdict import Tried, Verdict, percent


def parts_table(points: Sequence[Point]) -> Table:
    """Returns a table of the parts of a step, with a column for each point."""
    table = Table("of a step", *(point.name for point in points), title="replicas x examples of each: where time goes")
    for column in table.columns[1:]:
        column.justify = "right"
    for part in PARTS:
        if any(point.times.parts[part] for point in points) or part not in (COLLECTIVES, SKEW):
            table.add_row(part, *(_part(point, part) for point in points))
    table.add_section()
    table.add_row("measured", *(milliseconds(point.times.step) for point in points))
    table.add_row("parts add up to", *(percent(point.times.explained) for point in points))
    table.add_row("on one batch", *(milliseconds(point.times.synthetic) for point in points))
    table.add_row("examples/s", *(f"{point.examples_per_second:,.0f}" for point in points))
    for device in points[-1].memory:
        table.add_row(f"most memory, {device}", *(size(point.memory.get(device, 0)) for point in points))
    return table


def scaling_table(points: Sequence[Point], *, shared: bool) -> Table:
    """Returns a table of the replicas' throughput relative to one device's."""
    ideal = "one device's throughput: replicas share its cores" if shared else "as many times one device's as replicas"
    table = Table(
        "replicas x examples", "same batch", "on one batch", "same rows each", "on one batch", title=f"100 % is {ideal}"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for point in points:
        found = strong(point, points, shared=shared), weak(point, points, shared=shared)
        if any(found):
            table.add_row(point.name, *(cell for each in found for cell in _cells(each)))
    return table


def crossing_table(point: Point) -> Table:
    """Returns a table of the collectives' bytes and speed."""
    table = Table("phase", "each hands in", "takes", "gets through", title="between replicas, in one step")
    for column in table.columns[1:]:
        column.justify = "right"
    for crossing in point.times.crossings:
        through = f"{size(crossing.bandwidth)}/s" if crossing.bandwidth else "too fast to see"
        table.add_row(crossing.phase, size(crossing.bytes), milliseconds(crossing.seconds), through)
    return table


def tried_text(tried: Tried) -> str:
    """Returns a line on the effect of a remedy."""
    did = f"{tried.times_as_fast:.2f} times as many examples a second"
    how = f"tried, {did}" if tried.helps else f"tried, and it doesn't help: {did}"
    caution = f" ({tried.remedy.caution})" if tried.remedy.caution else ""
    return f"    {tried.remedy.line}    # {how}{caution}"


def as_json(points: Sequence[Point], verdict: Verdict, tried: Sequence[Tried], *, shared: bool) -> dict[str, Any]:
    """Returns all results as JSON values; times are seconds a step."""
    return {
        "points": [_point_json(point, points, shared=shared) for point in points],
        "replicas_share_cores": shared,
        "verdict": {"kind": verdict.kind, "share": verdict.share, "sentence": verdict.sentence},
        "tried": [
            {"line": each.remedy.line, "times_as_fast": each.times_as_fast, "helps": each.helps} for each in tried
        ],
    }


def milliseconds(seconds: float) -> str:
    """Formats a step's time.

    >>> milliseconds(0.00040512), milliseconds(2e-20), milliseconds(2.0)  # no clock has less than a nanosecond
    ('0.405 ms', '0 ms', '2.00 s')
    """
    return f"{round(1000 * seconds, 6):,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _point_json(point: Point, points: Sequence[Point], *, shared: bool) -> dict[str, Any]:
    times = point.times
    efficiencies = {"same_batch": strong(point, points, shared=shared), "same_rows": weak(point, points, shared=shared)}
    return {
        "replicas": point.scale.replicas,
        "global_batch_size": point.scale.global_batch_size,
        "step_seconds": times.step,
        "step_seconds_on_one_batch": times.synthetic,
        "parts": dict(times.parts),
        "hooks": dict(times.hooks),
        "collectives": [
            {"phase": each.phase, "bytes": each.bytes, "seconds": each.seconds, "bytes_per_second": each.bandwidth}
            for each in times.crossings
        ],
        "replicas_alone": list(times.alone),
        "efficiency": {name: found._asdict() for name, found in efficiencies.items() if found},
        "examples_per_second": point.examples_per_second,
        "most_memory": dict(point.memory),
    }


def _cells(found: Efficiency | None) -> tuple[str, str]:
    return (percent(found.real), percent(found.synthetic)) if found else ("", "")


def _part(point: Point, part: str) -> str:
    return f"{milliseconds(point.times.parts[part])} {percent(point.times.shares[part]):>5}"


# Distinguishable with colour blindness, after Okabe and Ito (2008); parts other than computing have warm colours.
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
    """Returns an SVG with a bar for each point. The bar is as long as the step, and divided into its parts."""
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
