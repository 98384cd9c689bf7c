"""Spaces of a search: `log(low, high)`, `uniform(low, high)`, `int(low, high)`, or a list of choices.

>>> space = parse_space("adamw.learning_rate = log(1e-4, 1e-1)")
>>> space, space.examples
(Range(name='adamw.learning_rate', kind='log', low=0.0001, high=0.1), ('0.0001', '0.1'))
>>> parse_space("Mlp.optimizer = [@adamw(), @sgd()]").examples
('@adamw()', '@sgd()')
"""

import ast
import dataclasses
import math
import re

from core.errors import ConfigurationError, did_you_mean, shown
from trainers.sweep.grid import Over, parse_over

KINDS = ("log", "uniform", "int")
EXAMPLE = (
    "write `log(1e-4, 1e-1)`, `uniform(0, 0.5)`, `int(1, 8)`, or a list of gin values, as "
    "`--space='adamw.learning_rate=log(1e-4, 1e-1)'`"
)


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` draws them uniformly on a logarithmic scale."""

    name: str
    kind: str
    low: float
    high: float

    @property
    def examples(self) -> tuple[str, ...]:
        """Returns values that stand for all others when the configuration is checked."""
        return (repr(self.low), repr(self.high))

    def __str__(self) -> str:
        return f"{self.kind}({self.low!r}, {self.high!r})"


Space = Over | Range


def parse_space(given: str) -> Space:
    """Parses the value of a `--space`. Raises a `ConfigurationError` if the value is invalid."""
    found = re.fullmatch(r"\s*(?P<name>[^=]*?)\s*=\s*(?P<kind>[A-Za-z_]\w*)\s*\((?P<numbers>.*)\)\s*", given, re.DOTALL)
    if not found:
        return parse_over(given, "--space", EXAMPLE)
    kind = found["kind"]
    if kind not in KINDS:
        near = did_you_mean(kind, KINDS)
        raise ConfigurationError(
            f"`--space` is {shown(given)}: `{kind}` isn't a kind of space.{near} Please {EXAMPLE}."
        )
    name = parse_over(f"{found['name']} = [0]", "--space", EXAMPLE).name
    low, high = _numbers(given, found["numbers"])
    if low >= high:
        order = "both ends are equal" if low == high else "the first number is the larger one"
        raise ConfigurationError(f"`--space` is {shown(given)}: {order}; give the lower end first, as `{kind}(1, 8)`.")
    if not math.isfinite(float(high) - float(low)):
        raise ConfigurationError(
            f"`--space` is {shown(given)}: the difference of its ends is too large for a float; give closer ends."
        )
    if kind == "log" and low <= 0:
        raise ConfigurationError(f"`--space` is {shown(given)}: `log` needs positive numbers, and {low!r} isn't.")
    if kind == "int" and (type(low), type(high)) != (int, int):
        raise ConfigurationError(f"`--space` is {shown(given)}: `int` needs whole numbers, as `int(1, 8)`.")
    return Range(name, kind, *((low, high) if kind == "int" else (float(low), float(high))))


def _numbers(given: str, inside: str) -> tuple[float, float]:
    """Returns the two finite numbers between the brackets."""
    try:
        low, high = ast.literal_eval(f"({inside},)")
        if all(type(x) in (int, float) and math.isfinite(x) for x in (low, high)):
            return low, high
    except (ValueError, SyntaxError, MemoryError, RecursionError, OverflowError):
        pass
    raise ConfigurationError(f"`--space` is {shown(given)}, which needs two finite numbers in brackets: {EXAMPLE}.")
