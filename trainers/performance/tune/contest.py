"""Which of two is faster, on a machine that has other things to do as well: pairs of turns, and what they differ by."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from core.measure.clock import Round, rounds

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
    began, ratios, seconds = clock(), list[float](), list[float]()

    def enough(found: Sequence[Round]) -> bool:
        one, other, spent = agree([found[-1]["before"], found[-1]["after"], clock() - began])
        ratios.append(one / other)
        seconds.append(other)
        return len(ratios) >= FEWEST and (spent > SECONDS or max(ratios) < CLEARLY_SLOWER)

    rounds({"before": before, "after": after}, most=PAIRS, enough=enough)
    return Outcome(ratios, statistics.median(seconds))
