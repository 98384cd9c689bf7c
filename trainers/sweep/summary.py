"""The result table of a sweep: one row for each setting, with means and spreads over its seeds."""

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from trainers.runs.figures import sign
from trainers.runs.listing import table
from trainers.runs.read import Run
from trainers.runs.spread import Spread
from trainers.sweep.grid import Over, Point

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
