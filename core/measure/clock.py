"""Times several programs in alternation, because a machine's speed drifts."""

import statistics
from collections.abc import Callable, Mapping, Sequence

Round = Mapping[str, float]  # the seconds that each run took


def rounds(
    runs: Mapping[str, Callable[[], float]], *, most: int, enough: Callable[[Sequence[Round]], bool] = lambda _: False
) -> list[Round]:
    """Calls each of `runs` once a round, and returns `[{name: seconds}]`. Every second round is in reverse order.

    It stops after `most` rounds, or once `enough(rounds so far)` is true.

    >>> rounds({"a": iter([1.0, 2.0]).__next__, "b": iter([3.0, 4.0]).__next__}, most=2)
    [{'a': 1.0, 'b': 3.0}, {'b': 4.0, 'a': 2.0}]
    """
    found = list[Round]()
    while True:
        found.append({name: runs[name]() for name in list(runs)[:: 1 if len(found) % 2 == 0 else -1]})
        if enough(found) or len(found) == most:
            return found


def medians(found: Sequence[Round]) -> dict[str, float]:
    """Returns `{name: median seconds}` over all rounds, in the order of the first round."""
    return {name: statistics.median(seconds[name] for seconds in found) for name in found[0]}


def fractions(runs: Mapping[str, Callable[[], float]], *, of: str, most: int) -> tuple[float, dict[str, float]]:
    """Returns the median seconds of the run `of`, and each run's median fraction of it, `{name: fraction}`.

    >>> whole, parts = fractions({"part": iter([1.0, 6.0, 1.0]).__next__, "all": lambda: 4.0}, of="all", most=3)
    >>> whole, parts["part"]
    (4.0, 0.25)
    """
    found = rounds(runs, most=most)
    return medians(found)[of], medians([{name: x / each[of] for name, x in each.items()} for each in found])
