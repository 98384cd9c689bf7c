"""What was found, as tables for people and as JSON for programs."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from trainers.diagnose.points import Point
from trainers.diagnose.remedies import Tried
from trainers.diagnose.times import PARTS
from trainers.diagnose.verdict import Verdict, percent
from trainers.sizes import size


def parts_table(points: Sequence[Point]) -> Table:
    """Tabulates where the time of a step goes, a column for each point."""
    table = Table("of a step", *(point.name for point in points), title="where the time of a step goes")
    for column in table.columns[1:]:
        column.justify = "right"
    for part in PARTS:
        if any(point.times.parts[part] for point in points):
            table.add_row(part, *(_part(point, part) for point in points))
    table.add_section()
    table.add_row("measured", *(milliseconds(point.times.step) for point in points))
    table.add_row("parts add up to", *(percent(point.times.explained) for point in points))
    table.add_row("on one batch", *(milliseconds(point.times.synthetic) for point in points))
    table.add_row("examples/s", *(f"{point.examples_per_second:,.0f}" for point in points))
    for device in points[0].memory:
        table.add_row(f"most memory, {device}", *(size(point.memory.get(device, 0)) for point in points))
    return table


def tried_text(tried: Tried) -> str:
    """Says what a gin line did."""
    did = f"{tried.times_as_fast:.2f} times as many examples a second"
    how = f"tried, {did}" if tried.helps else f"tried, and it doesn't help: {did}"
    caution = f" ({tried.remedy.caution})" if tried.remedy.caution else ""
    return f"    {tried.remedy.line}    # {how}{caution}"


def as_json(points: Sequence[Point], verdict: Verdict, tried: Sequence[Tried]) -> dict[str, Any]:
    """Returns all of it as JSON holds it; times are seconds a step."""
    return {
        "points": [
            {
                "name": point.name,
                "replicas": point.replicas,
                "global_batch_size": point.global_batch_size,
                "step_seconds": point.times.step,
                "step_seconds_on_one_batch": point.times.synthetic,
                "parts": dict(point.times.parts),
                "hooks": dict(point.times.hooks),
                "examples_per_second": point.examples_per_second,
                "most_memory": dict(point.memory),
            }
            for point in points
        ],
        "verdict": {"kind": verdict.kind, "share": verdict.share, "sentence": verdict.sentence},
        "tried": [
            {"line": each.remedy.line, "times_as_fast": each.times_as_fast, "helps": each.helps} for each in tried
        ],
    }


def milliseconds(seconds: float) -> str:
    """Returns a time of a step."""
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _part(point: Point, part: str) -> str:
    return f"{milliseconds(point.times.parts[part])} {percent(point.times.shares[part]):>5}"
