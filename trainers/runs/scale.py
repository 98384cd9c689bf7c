"""The axis of a chart: where a value lies between its ends, and which values are written beside it.

>>> scale = Scale.of([2.3, 0.2, 0.05])
>>> scale.logarithmic, scale.ticks(), round(scale.place(0.05), 3), round(scale.place(2.3), 3)
(True, [0.05, 0.1, 0.2, 0.5, 1.0, 2.0], 0.0, 1.0)
>>> Scale.of([0.0, 100.0]).ticks()
[0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
"""

import dataclasses
import math
from collections.abc import Iterable

from core.telemetry.console import format_figure

WIDE = 10.0  # how many times the smallest value the largest has to be for a logarithmic scale
INTERVALS = 5
LONGEST = 7  # letters of a label, which has to stand beside a chart


def tick_label(name: str, tick: float) -> str:
    """Returns what stands beside a round value of the figure `name`.

    >>> tick_label("loss", 0.05), tick_label("loss", 100.0), tick_label("step_seconds", 0.05)
    ('0.05', '100', '50 ms')
    >>> tick_label("loss", 2_000_000.0), tick_label("examples_per_second", -150_000.0)
    ('2e+06', '-1.5e+05')
    """
    number, space, unit = format_figure(name, tick).partition(" ")
    if "." in number and "e" not in number:
        number = number.rstrip("0").rstrip(".")
    if len(number) > LONGEST:
        number = f"{tick:.3g}"
    return f"{number}{space}{unit}"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, evenly or by their logarithms."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Iterable[float], *, even: bool = False) -> "Scale":
        """Returns the scale that holds these finite values: logarithmic, unless `even`, where they span a decade."""
        values = list(values)
        low, high = min(values), max(values)
        if low == high:
            margin = abs(low) / 10 or 1.0
            return cls(low - margin, high + margin, False)
        return cls(low, high, not even and 0 < low * WIDE <= high)

    def place(self, value: float) -> float:
        """Returns 0 for `low`, 1 for `high`."""
        if self.logarithmic:
            low = math.log(self.low)
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves: the span may be too large a float

    def ticks(self) -> list[float]:
        """Returns round values within the scale."""
        if self.logarithmic:
            first, last = math.log10(self.low), math.log10(self.high)
            decades = range(math.floor(first), math.ceil(last) + 1)
            digits = (1, 2, 5) if last - first <= 3 else (1,)
            every = 1 if last - first <= INTERVALS else math.ceil(len(decades) / INTERVALS)
            found = [float(f"{digit}e{decade}") for decade in decades[::every] for digit in digits]
        else:
            rough = (self.high / 2 - self.low / 2) / INTERVALS * 2
            power = math.floor(math.log10(rough))
            step = next(x for digit in (1, 2, 5, 10) if (x := float(f"{digit}e{power}")) >= rough * 0.999)
            number = math.ceil(self.low / step)
            found = [float(f"{(number + i) * step:.12g}") for i in range(INTERVALS + 2)]  # not 0.6000000000000001
        return [x for x in dict.fromkeys(found) if self._holds(x)]

    def _holds(self, value: float) -> bool:
        return (value > 0 or not self.logarithmic) and -1e-9 <= self.place(value) <= 1 + 1e-9
