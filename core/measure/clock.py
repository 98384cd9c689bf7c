"""Alternating timing: a machine's speed drifts, so compared programs are timed in turns."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping


def side_by_side(runs: Mapping[str, Callable[[], float]]) -> Iterator[dict[str, float]]:
    """Yields the times that the runs return, round after round; every second round is in reverse order.

    >>> took = side_by_side({"a": iter([1.0, 2.0]).__next__, "b": iter([3.0, 4.0]).__next__})
    >>> next(took), next(took)
    ({'a': 1.0, 'b': 3.0}, {'b': 4.0, 'a': 2.0})
    """
    for i in itertools.count():
        yield {name: runs[name]() for name in list(runs)[:: 1 if i % 2 == 0 else -1]}


def fractions(runs: Mapping[str, Callable[[], float]], *, of: str, rounds: int) -> tuple[float, dict[str, float]]:
    """Returns the median time of the run `of`, and the median fraction of it that each other run took.

    >>> whole, parts = fractions({"part": iter([1.0, 6.0, 1.0]).__next__, "all": lambda: 4.0}, of="all", rounds=3)
    >>> whole, parts["part"]
    (4.0, 0.25)
    """
    found = list(itertools.islice(side_by_side(runs), rounds))
    whole = statistics.median(seconds[of] for seconds in found)
    return whole, {name: statistics.median(seconds[name] / seconds[of] for seconds in found) for name in runs}
