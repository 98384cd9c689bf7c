"""Chart axes: positions of values, and the values to label.

>>> scale = Scale.of([2.3, 0.2, 0.05])
>>> scale.logarithmic, scale.ticks(), round(scale.place(0.05), 3), round(scale.place(2.3), 3)
(True, [0.05, 0.1, 0.2, 0.5, 1.0, 2.0], 0.0, 1.0)
>>> Scale.of([0.0, 100.0]).ticks()
[0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence

from core.telemetry.console import format_figure

WIDE = 10.0  # ratio of largest to smallest value from which the scale is logarithmic
INTERVALS = 5
LONGEST = 8  # characters of a label


def tick_labels(name: str, ticks: Sequence[float]) -> list[str]:
    """Returns short, distinct labels for round values of the metric `name`.

    >>> tick_labels("loss", [0.05, 100.0, 2_000_000.0]), tick_labels("step_seconds", [0.05])
    (['0.05', '100', '2e6'], ['50 ms'])
    >>> tick_labels("loss", [1000.0, 1000.2])
    ['1000', '1000.2']
    """
    labels = [_label(name, tick) for tick in ticks]
    if len({*labels}) == len(ticks):
        return labels
    digits = next(n for n in range(4, 18) if len({f"{tick:.{n}g}" for tick in ticks}) == len(ticks))
    return [_short(f"{tick:.{digits}g}") for tick in ticks]


def _label(name: str, tick: float) -> str:
    number, space, unit = format_figure(name, tick).partition(" ")
    if "." in number and "e" not in number:
        number = number.rstrip("0").rstrip(".")
    return f"{_short(number if len(number) <= LONGEST else f'{tick:.3g}')}{space}{unit}"


def _short(number: str) -> str:
    """Returns a number without redundant characters in its exponent."""
    return re.sub(r"e\+?(-?)0*", r"e\1", number)


def step_label(step: int) -> str:
    """Returns the label of a step.

    >>> step_label(800_000), step_label(1_500_000)
    ('800,000', '1.5M')
    """
    return f"{step:,}" if step < 1_000_000 else f"{step / 1_000_000:.12g}M"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on a linear or logarithmic axis."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Iterable[float], *, even: bool = False) -> "Scale":
        """Returns a scale for these finite values: logarithmic if they span a decade, unless `even` is set."""
        values = list(values)
        low, high = min(values), max(values)
        if not (high / 2 - low / 2) / INTERVALS:  # one value, or two with no other float between them
            margin = abs(low) / 10 or 1.0
            return cls(low - margin, high + margin, False)
        return cls(low, high, not even and 0 < low * WIDE <= high)

    def place(self, value: float) -> float:
        """Returns the position of `value` on the axis: 0 for `low`, 1 for `high`."""
        if self.logarithmic:
            low = math.log(self.low)
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves, because the span may overflow

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
