"""Tables of the results: medians, spreads, ratios, and rows that are void because their losses differ."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.peers.roster import AUTO, DEFAULTS, PEERS, Target
from benchmarks.peers.rounds import Found
from benchmarks.peers.works import TOLERANCE

NONE = "–"


class Row(NamedTuple):
    """A peer's steps a second, unless something is `wrong` with it."""

    median: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    wrong: str = ""


def rows_of(found: Mapping[str, Sequence[Found]], tolerance: float = TOLERANCE) -> dict[str, Row]:
    """Returns one row per peer; losses are compared with Tapeloop's, or with the median of all if that is absent."""
    losses = {name: [each["loss"] for each in seen if "loss" in each] for name, seen in found.items()}
    known = [loss for each in losses.values() for loss in each]
    right = float(np.median(losses.get(DEFAULTS) or losses.get(AUTO) or known or [np.nan]))
    return {name: _row(seen, right, tolerance) for name, seen in found.items()}


def _row(seen: Sequence[Found], right: float, tolerance: float) -> Row:
    failed = [str(each["failed"]).partition(":")[0] for each in seen if "failed" in each]
    if failed or not seen:
        return Row(wrong=failed[0] if failed else "not run")
    for each in seen:
        if "loss" in each and not abs(each["loss"] - right) <= tolerance * abs(right):  # true for nan, too
            return Row(wrong=f"void: its loss is {each['loss']:.6g}, not {right:.6g}")
    rates = [rate for each in seen for rate in each["rates"]]
    low, high = np.percentile(rates, [10, 90])
    return Row(float(np.median(rates)), float(low), float(high))


def ratio(rows: Mapping[str, Row], ours: str, against: Sequence[str]) -> tuple[float, str] | None:
    """Returns the ratio of `ours` to the fastest peer's speed, and that peer's name."""
    there = {name: rows[name].median for name in against if name in rows and not rows[name].wrong}
    if not there or ours not in rows or rows[ours].wrong:
        return None
    best = max(there, key=lambda name: there[name])
    return rows[ours].median / there[best], best


def peers_table(rows: Mapping[str, Row], *, first_step: bool = False) -> tuple[list[str], list[list[str]]]:
    """Returns the table of a work: each peer's speed, and Tapeloop's speed relative to it.

    If only the `first_step` is timed, the table has seconds in place of steps a second; ratios are still of speeds.
    """
    head = ["peer", "what it is", "seconds" if first_step else "steps/s", "10 to 90 %", "`auto` / it", "defaults / it"]
    cells = []
    for name, row in rows.items():
        who = [f"`{name}`", PEERS[name].what]
        if row.wrong:
            cells.append([*who, row.wrong, "", "", ""])
        else:
            numbers = [_number(1.0 / x if first_step else x) for x in (row.median, row.low, row.high)]
            low, high = reversed(numbers[1:]) if first_step else numbers[1:]
            spread = f"{low} to {high}"
            ratios = [_ratio(ratio(rows, ours, [name])) for ours in (AUTO, DEFAULTS)]
            cells.append([*who, numbers[0], spread, *ratios])
    return head, cells


def targets_table(rows: Mapping[str, Row], targets: Sequence[Target]) -> tuple[list[str], list[list[str]]]:
    """Returns the table of Tapeloop's targets, with the ratios reached."""
    head = ["against", "which", "at least", "`auto`", "defaults"]
    cells = []
    for target in targets:
        auto, defaults = (ratio(rows, ours, target.against) for ours in (AUTO, DEFAULTS))
        best = auto or defaults
        floor = "as it goes" if target.at_least is None else f"{target.at_least:g}"
        which = f"`{best[1]}`" if best else NONE
        ran = [name for name in target.against if name in rows and not rows[name].wrong]
        if best and len(ran) < len(here := [name for name in target.against if name in rows]):
            which += f", of the {len(ran)} of {len(here)} that ran"
        cells.append([target.what, which, floor, _ratio(auto), _ratio(defaults)])
    return head, cells


def _ratio(found: tuple[float, str] | None) -> str:
    return NONE if found is None else f"{found[0]:.2f}"


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
