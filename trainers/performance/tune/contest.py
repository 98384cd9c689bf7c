"""Which of two is faster, on a machine that has other things to do as well: pairs of turns, and what they differ by."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence

from core.measure import side_by_side

PAIRS, FEWEST = 7, 3
SECONDS = 12.0  # of all pairs; the fewest are measured in any case
WORTH = 1.03  # times as fast, and not less, is a gain
CLEARLY_SLOWER = 0.9


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How many times as fast the second was, pair by pair; its seconds a step."""

    ratios: Sequence[float]
    seconds: float

    @property
    def times_as_fast(self) -> float:
        """Returns the median of all pairs."""
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """Returns by how much a typical pair differs from the median, as a fraction of it."""
        middle = self.times_as_fast
        return statistics.median(abs(ratio - middle) for ratio in self.ratios) / middle

    @property
    def faster(self) -> bool:
        """Says whether the second gained something, more than the noise, and in all pairs but one of many."""
        slower = sum(ratio <= 1.0 for ratio in self.ratios)
        enough = self.times_as_fast >= WORTH and self.times_as_fast - 1.0 > self.noise
        return enough and slower <= (1 if len(self.ratios) == PAIRS else 0)


def contest(
    before: Callable[[], float],
    after: Callable[[], float],
    *,
    agree: Callable[[Sequence[float]], Sequence[float]] = lambda numbers: numbers,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measures two in turns, each of which says how many seconds a step took; workers agree on the numbers.

    >>> outcome = contest(iter([2.0, 2.2, 9.0, 2.0, 2.0, 2.0, 2.0]).__next__, lambda: 1.0)
    >>> outcome.times_as_fast, outcome.faster
    (2.0, True)
    """
    began, found = clock(), list[tuple[float, float]]()
    for seconds in itertools.islice(side_by_side({"before": before, "after": after}), PAIRS):
        one, other, spent = agree([seconds["before"], seconds["after"], clock() - began])
        found.append((one, other))
        ratios = [a / b for a, b in found]
        if len(found) >= FEWEST and (spent > SECONDS or max(ratios) < CLEARLY_SLOWER):
            break
    return Outcome(ratios, statistics.median(other for _, other in found))
