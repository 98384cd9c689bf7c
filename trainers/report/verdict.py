"""Names the best run in one sentence, and says whether its lead exceeds chance."""

import math
from collections.abc import Sequence

from core.telemetry.console import format_figure
from trainers.runs.figures import main_figures, sign
from trainers.runs.read import FINISHED, Run
from trainers.runs.spread import Spread, is_seed


def verdict(runs: Sequence[Run]) -> str:
    """Returns a sentence on the best finished run by the most common metric. Runs of all seeds form a group."""
    finished = [(i, run) for i, run in enumerate(runs, 1) if run.state == FINISHED]
    if not finished:
        return "No run has finished, so there is nothing to compare."
    figures = main_figures(run.figures for _, run in finished)
    if not figures:
        return "No metric with a known direction was measured: compare the curves."
    name = figures[0]
    groups: dict[object, list[tuple[int, Run]]] = {}
    for i, run in finished:
        if name in run.figures and math.isfinite(run.figures[name].last[1]):
            groups.setdefault(_but_its_seed(run), []).append((i, run))
    ranked = sorted((_told(group, name) for group in groups.values()), key=lambda each: -sign(name) * each[1].mean)
    if not ranked:
        return f"No run has ended with a finite {name}."
    who, spread, figure = ranked[0]
    who = who.capitalize()
    if len(ranked) == 1:
        return f"{who} ended with {name} {figure}; no other setting has finished."
    next_who, next_spread, next_figure = ranked[1]
    gap = abs(spread.mean - next_spread.mean)
    better = "smallest" if sign(name) < 0 else "largest"
    says = f"{who} ended with the {better} {name}, {figure}, before {next_who} with {next_figure}: "
    deviations = [each.deviation for each in (spread, next_spread) if each.deviation is not None]
    if not deviations:
        return f"{says}one seed each, which can't separate a difference from chance; repeat them with other seeds."
    if gap <= max(deviations):
        return f"{says}no further apart than seeds of one setting, so neither is shown to be better."
    times = f"{gap / max(deviations):.1f} times" if max(deviations) else "more than"
    return f"{says}{format_figure(name, gap)} apart, {times} the standard deviation between seeds."


def _but_its_seed(run: Run) -> object:
    """Returns a key that is equal for runs that differ only in the seed; the path if no configuration is recorded."""
    settings = {name: x for name, x in run.configuration.items() if not is_seed(name)}
    return frozenset(settings.items()) if settings else run.path


def _told(group: Sequence[tuple[int, Run]], name: str) -> tuple[str, Spread, str]:
    """Returns a group's name, its spread, and the spread as text."""
    numbers = [str(i) for i, _ in group]
    who = f"runs {', '.join(numbers[:-1])} and {numbers[-1]}" if len(group) > 1 else f"run {numbers[0]}"
    spread = Spread.of([*{_seed(run): run.figures[name].last[1] for _, run in group}.values()])
    told = spread.told(name)
    return who, spread, told if spread.deviation is None else f"{told} over {spread.count} seeds"


def _seed(run: Run) -> str | None:
    return next((x for name, x in run.configuration.items() if is_seed(name)), None)
