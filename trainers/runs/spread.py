"""How far repetitions of a run lie apart.

>>> Spread.of([1.0, 2.0, 3.0])
Spread(mean=2.0, deviation=1.0, count=3)
>>> Spread.of([1.0]).deviation is None
True
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """The mean of `count` values, and their standard deviation as a sample, which a single one hasn't."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of these values; nan where one of them is."""
        if not values or not all(map(math.isfinite, values)):
            return cls(math.nan, None, len(values))
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))
