"""Mean and standard deviation over repetitions of a run.

>>> Spread.of([1.0, 2.0, 3.0])
Spread(mean=2.0, deviation=1.0, count=3)
>>> Spread.of([1.0, 1.02]).told("loss"), Spread.of([1.0]).told("loss")
('1.0100 ± 0.0141', '1.0000')
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from core.telemetry.console import format_figure
from trainers.runs.listing import MISSING

SEED = "Experiment.seed"


def is_seed(name: str) -> bool:
    """Returns whether this parameter is a seed: runs that differ only in the seed are repetitions."""
    return name.rpartition("/")[2].split(".")[-2:] == SEED.split(".")


@dataclasses.dataclass(frozen=True)
class Spread:
    """The mean of `count` values and their sample standard deviation, `None` for a single value."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of `values`. The mean is NaN if a value isn't finite."""
        if not values or not all(map(math.isfinite, values)):
            return cls(math.nan, None, len(values))
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))

    def told(self, name: str) -> str:
        """Returns the mean of the metric `name` and its deviation, with the same number of decimals."""
        if not self.count:
            return MISSING
        mean = format_figure(name, self.mean)
        if self.deviation is None:
            return mean
        same_places = f"{self.deviation:,.{len(mean.partition('.')[2])}f}"
        fits = not set(mean) - set("-.,0123456789") and (same_places.strip("0.,") or not self.deviation)
        return f"{mean} ± {same_places if fits else format_figure(name, self.deviation)}"
