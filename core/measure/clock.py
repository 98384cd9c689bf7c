"""Times things in turns: a machine's speed drifts, so what is compared is measured side by side."""

import statistics
from collections.abc import Callable, Mapping


def medians(runs: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, float]:
    """Returns the median of what each run says it took, over rounds that go through all of them, to and fro.

    >>> medians({"one": iter([1.0, 1.0, 7.0]).__next__, "two": lambda: 2.0}, rounds=3)
    {'one': 1.0, 'two': 2.0}
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds):
        for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
            seconds[name].append(runs[name]())
    return {name: statistics.median(found) for name, found in seconds.items()}
