"""The result tables of a sweep: one row for each setting, with means and spreads over its seeds."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from core.telemetry.console import format_figure
from trainers.runs.figures import sign
from trainers.runs.listing import table
from trainers.runs.read import Run
from trainers.runs.spread import Spread
from trainers.sweep.grid import Over, Point

MOST_ROWS = 20  # of a search
Values = tuple[str, ...]  # all values but the seed


def groups_of(points: Sequence[Point], overs: Sequence[Over]) -> dict[Values, list[Point]]:
    """Returns {a point's values without the seed: the points that share these values}."""
    groups: dict[Values, list[Point]] = {}
    for point in points:
        key = tuple(value for over, value in zip(overs, point.values, strict=True) if not over.is_seed)
        groups.setdefault(key, []).append(point)
    return groups


def summary(
    overs: Sequence[Over], groups: Mapping[Values, Sequence[Run | None]], figures: Sequence[str], *, ascii_only: bool
) -> Table:
    """Returns a table with the spread of each metric's last value over a group's runs. An unfinished run is None."""
    finished = {key: [run for run in runs if run] for key, runs in groups.items()}
    spreads = {
        name: {
            key: Spread.of([run.figures[name].last[1] for run in runs if name in run.figures])
            for key, runs in finished.items()
        }
        for name in figures
    }
    names = [over.name for over in overs if not over.is_seed]
    made = table([*names, "runs", *figures], ascii_only=ascii_only)
    for key, runs in groups.items():
        cells = []
        for name, by_key in spreads.items():
            best = len(groups) > 1 and _is_best(name, by_key[key], [*by_key.values()])
            cells.append(Text(f"{by_key[key].told(name)}{'  best' if best else ''}", "bold" if best else ""))
        done = len(finished[key])
        made.add_row(*map(Text, key), Text(f"{done}" if done == len(runs) else f"{done} of {len(runs)}"), *cells)
    return made


def _is_best(name: str, spread: Spread, others: Sequence[Spread]) -> bool:
    known = [sign(name) * each.mean for each in others if math.isfinite(each.mean)]
    return bool(sign(name) and known) and sign(name) * spread.mean == max(known)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A finished trial of a search: its values, and the spread of the metric over its seeds."""

    name: str
    values: Sequence[str]
    spread: Spread


def ranking(names: Sequence[str], figure: str, trials: Sequence[Trial], *, ascii_only: bool) -> Table:
    """Returns a table of the best of `trials`, which are sorted; `names` are those of their values."""
    made = table(["trial", *names, "runs", figure], ascii_only=ascii_only)
    for trial in trials[:MOST_ROWS]:
        cells = [trial.name, *trial.values, str(trial.spread.count), trial.spread.told(figure)]
        made.add_row(*map(Text, cells))
    return made


def lead(figure: str, trials: Sequence[Trial]) -> str:
    """Says whether the best of `trials`, which are sorted, leads by more than chance."""
    if len(trials) < 2:
        return ""
    best, second = trials[0], trials[1]
    gap = abs(best.spread.mean - second.spread.mean)
    deviations = [each.spread.deviation for each in (best, second) if each.spread.deviation is not None]
    if not deviations:
        return (
            f"{best.name} has one seed, which can't separate a difference from chance, and the best of "
            f"{len(trials)} is lucky as well: repeat it with other seeds."
        )
    if gap <= max(deviations):
        return f"{best.name} leads {second.name} by no more than seeds of one setting differ: neither is better."
    times = f"{gap / max(deviations):.1f} times" if max(deviations) else "more than"
    return (
        f"{best.name} leads {second.name} by {format_figure(figure, gap)}, {times} the standard deviation between "
        f"seeds. It is the best of {len(trials)}, so other seeds may show a smaller lead."
    )
