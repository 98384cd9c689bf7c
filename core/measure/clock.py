"""Alternating timing: a machine's speed drifts, so compared programs are timed in turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence

Round = Mapping[str, float]  # the seconds that each run took


def rounds(
    runs: Mapping[str, Callable[[], float]], *, most: int, enough: Callable[[Sequence[Round]], bool] = lambda _: False
) -> list[Round]:
    """Returns the times that the runs return, round after round; every second round is in reverse order.

    It stops after `most` rounds, or earlier if `enough` says so of the rounds until then.

    >>> rounds({"a": iter([1.0, 2.0]).__next__, "b": iter([3.0, 4.0]).__next__}, most=2)
    [{'a': 1.0, 'b': 3.0}, {'b': 4.0, 'a': 2.0}]
    """
    found = list[Round]()
    while True:
        found.append({name: runs[name]() for name in list(runs)[:: 1 if len(found) % 2 == 0 else -1]})
        if enough(found) or len(found) == most:
            return found


def medians(found: Sequence[Round]) -> dict[str, float]:
    """Returns the median seconds of each run, in the order of the first round."""
    return {name: statistics.median(seconds[name] for seconds in found) for name in found[0]}


def fractions(runs: Mapping[str, Callable[[], float]], *, of: str, most: int) -> tuple[float, dict[str, float]]:
    """Returns the median time of the run `of`, and the median fraction of it that each other run took.

    >>> whole, parts = fractions({"part": iter([1.0, 6.0, 1.0]).__next__, "all": lambda: 4.0}, of="all", most=3)
    >>> whole, parts["part"]
    (4.0, 0.25)
    """
    found = rounds(runs, most=most)
    return medians(found)[of], medians([{name: x / each[of] for name, x in each.items()} for each in found])
