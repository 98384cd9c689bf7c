"""Compares the speed of two programs on a busy machine: runs them in pairs, and compares the ratios."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from core.measure.clock import Round, rounds

PAIRS, FEWEST = 7, 3
SECONDS = 12.0  # for all pairs, beyond a minimum number
WORTH = 1.03  # smaller speed-ups don't count
CLEARLY_SLOWER = 0.9


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The comparison of two programs: the second one's speed-up in each pair of runs, and its seconds per step."""

    ratios: Sequence[float]
    seconds: float

    @property
    def times_as_fast(self) -> float:
        """Returns the median speed-up over all pairs."""
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """Returns the median deviation of the speed-ups from their median, as a fraction of the median."""
        middle = self.times_as_fast
        return statistics.median(abs(ratio - middle) for ratio in self.ratios) / middle

    @property
    def faster(self) -> bool:
        """Returns whether the second program is faster, by more than the noise, and in nearly all pairs."""
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
    """Calls `before` and `after` in turns, which return seconds a step. `agree` gives all workers the same numbers.

    >>> outcome = contest(iter([2.0, 2.2, 9.0, 2.0, 2.0, 2.0, 2.0]).__next__, lambda: 1.0)
    >>> outcome.times_as_fast, outcome.faster
    (2.0, True)
    """
    began, ratios, seconds = clock(), list[float](), list[float]()

    def enough(found: Sequence[Round]) -> bool:
        one, other, spent = agree([found[-1]["before"], found[-1]["after"], clock() - began])
        ratios.append(one / other)
        seconds.append(other)
        return len(ratios) >= FEWEST and (spent > SECONDS or max(ratios) < CLEARLY_SLOWER)

    rounds({"before": before, "after": after}, most=PAIRS, enough=enough)
    return Outcome(ratios, statistics.median(seconds))
