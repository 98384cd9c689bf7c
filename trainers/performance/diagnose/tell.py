"""What was found, as tables for people and as JSON for programs."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from trainers.options.sizes import size
from trainers.performance.diagnose.points import Efficiency, Point, strong, weak
from trainers.performance.diagnose.remedies import Tried
from trainers.performance.diagnose.times import COLLECTIVES, PARTS, SKEW
from trainers.performance.diagnose.verdict import Verdict, percent


def parts_table(points: Sequence[Point]) -> Table:
    """Tabulates where the time of a step goes, a column for each point."""
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
    """Tabulates what replicas make of one device's throughput."""
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
    """Tabulates what crosses between replicas, and how fast."""
    table = Table("phase", "each hands in", "takes", "gets through", title="between replicas, in one step")
    for column in table.columns[1:]:
        column.justify = "right"
    for crossing in point.times.crossings:
        through = f"{size(crossing.bandwidth)}/s" if crossing.bandwidth else "too fast to see"
        table.add_row(crossing.phase, size(crossing.bytes), milliseconds(crossing.seconds), through)
    return table


def tried_text(tried: Tried) -> str:
    """Says what a gin line did."""
    did = f"{tried.times_as_fast:.2f} times as many examples a second"
    how = f"tried, {did}" if tried.helps else f"tried, and it doesn't help: {did}"
    caution = f" ({tried.remedy.caution})" if tried.remedy.caution else ""
    return f"    {tried.remedy.line}    # {how}{caution}"


def as_json(points: Sequence[Point], verdict: Verdict, tried: Sequence[Tried], *, shared: bool) -> dict[str, Any]:
    """Returns all of it as JSON holds it; times are seconds a step."""
    return {
        "points": [_point_json(point, points, shared=shared) for point in points],
        "replicas_share_cores": shared,
        "verdict": {"kind": verdict.kind, "share": verdict.share, "sentence": verdict.sentence},
        "tried": [
            {"line": each.remedy.line, "times_as_fast": each.times_as_fast, "helps": each.helps} for each in tried
        ],
    }


def milliseconds(seconds: float) -> str:
    """Returns a time of a step.

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
