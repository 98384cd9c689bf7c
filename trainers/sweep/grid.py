"""Points of a grid. A point combines one value of each `--over`, and its folder is named after these values.

>>> rates, seeds = parse_over("adamw.learning_rate = [1e-3, 3e-3]"), parse_over("seed = [0, 1]")
>>> [point.name for point in points_of([rates, seeds])]
['learning_rate=0.001,seed=0', 'learning_rate=0.001,seed=1', 'learning_rate=0.003,seed=0', 'learning_rate=0.003,seed=1']
>>> points_of([rates, seeds])[0].params
['adamw.learning_rate = 0.001', 'Experiment.seed = 0']
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Any

from core.errors import ConfigurationError, shown
from trainers.gin_audit.parse import read_all
from trainers.gin_audit.statements import Reference, text
from trainers.runs.spread import SEED, is_seed

MOST_POINTS = 10_000
EXAMPLE = "write a list of gin values, as `--over='adamw.learning_rate=[1e-3, 3e-3]'`"


@dataclasses.dataclass(frozen=True)
class Over:
    """One `--over`: the name of a parameter or macro, and its values."""

    name: str
    values: tuple[Any, ...]

    @property
    def examples(self) -> tuple[str, ...]:
        """Returns the values as gin writes them."""
        return tuple(text(value) for value in self.values)

    @property
    def is_seed(self) -> bool:
        """Returns whether this is a seed: points that differ only in the seed are repetitions."""
        return is_seed(self.name)

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"[{', '.join(self.examples)}]"


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a grid."""

    name: str  # of its folder
    params: list[str]  # one `--gin_param` for each `--over`
    values: tuple[str, ...]  # as gin writes them


def parse_over(given: str, flag: str = "--over", example: str = EXAMPLE) -> Over:
    """Parses a parameter with a list of values. Raises a `ConfigurationError` if the value is invalid."""
    try:
        bindings = read_all([], [given], []).bindings
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("--gin_param", flag)) from None
    if len(bindings) != 1 or not isinstance(bindings[0].value, list):
        raise ConfigurationError(f"`{flag}` is {shown(given)}, which has no list of values: {example}.")
    (binding,) = bindings
    if not binding.value:
        raise ConfigurationError(f"`{flag}` is {shown(given)}: the list is empty; {example}.")
    texts = [text(value) for value in binding.value]
    twice = next((each for each in texts if texts.count(each) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"`{flag}` is {shown(given)}: it contains {twice} twice, which would be the same run. Keep one; for "
            "repetitions sweep over seeds, as `--over='seed=[0, 1, 2]'`."
        )
    return Over(SEED if binding.name == "seed" else binding.name, tuple(binding.value))


def points_of(overs: Sequence[Over]) -> list[Point]:
    """Returns all points of the grid; the values of the last `--over` vary fastest."""
    names = [over.name for over in overs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"`--over` names `{twice}` twice: put all of its values into one list.")
    shorts = [over.short for over in overs]
    labels = [over.short if shorts.count(over.short) == 1 else over.name for over in overs]
    count = 1
    for over in overs:
        count *= len(over.values)
    if count > MOST_POINTS:
        raise ConfigurationError(f"`--over` makes a grid of {count:,} points; sweep over at most {MOST_POINTS:,}.")
    return [_point(names, labels, values) for values in itertools.product(*(over.values for over in overs))]


def _point(names: Sequence[str], labels: Sequence[str], values: Sequence[Any]) -> Point:
    params = [f"{name} = {text(value)}" for name, value in zip(names, values, strict=True)]
    readable = [_readable(value) for value in values]
    name = ",".join(f"{_safe(label)}={_safe(x)[:40]}" for label, x in zip(labels, readable, strict=True))
    if len(name) > 150 or any(_safe(x)[:40] != x for x in (*labels, *readable)):
        name = f"{name[:150]}-{hashlib.sha256(repr(params).encode()).hexdigest()[:8]}"  # short names may collide
    return Point(name, params, tuple(text(value) for value in values))


def _readable(value: Any) -> str:
    """Returns a name for a value: a plain word without quotes, `@f()` without parentheses."""
    if isinstance(value, str) and re.fullmatch(r"[a-z]\w*", value):
        return value
    if isinstance(value, Reference) and value.evaluated:
        return str(value).removesuffix("()")
    return text(value)


def _safe(word: str) -> str:
    """Returns `word` as a valid file name that needs no quotes in a shell."""
    return re.sub(r"[^A-Za-z0-9_.@%+-]+", "_", word)
