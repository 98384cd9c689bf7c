"""Times things in turns: a machine's speed drifts, so what is compared is measured side by side."""

import statistics
from collections.abc import Callable, Mapping


def fractions(runs: Mapping[str, Callable[[], float]], *, of: str, rounds: int) -> tuple[float, dict[str, float]]:
    """Returns the median of what the run `of` says it took, and medians of the fractions of it that all others took.

    Each round goes through all of them, every other one backwards.

    >>> whole, parts = fractions({"part": iter([1.0, 6.0, 1.0]).__next__, "all": lambda: 4.0}, of="all", rounds=3)
    >>> whole, parts["part"]
    (4.0, 0.25)
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds):
        for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
            seconds[name].append(runs[name]())
    return statistics.median(seconds[of]), {
        name: statistics.median(x / whole for x, whole in zip(found, seconds[of], strict=True))
        for name, found in seconds.items()
    }
