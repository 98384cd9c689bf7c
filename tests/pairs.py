"""Combinations for `pytest.mark.parametrize`: every value once in a plain `pytest`, the full product with `long`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


def in_turn(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Returns `(x, *y)` for every `x` and `y`, `long` but for as few as have every `x` and every `y` among them."""
    return [
        pytest.param(x, *y, marks=[] if j == i % len(second) or i == j % len(first) else [pytest.mark.long])
        for (i, x), (j, y) in itertools.product(enumerate(first), enumerate(second))
    ]


def covering(examples: Sequence[Mapping[str, Any]], together: int) -> list[int]:
    """Returns the indices of a few examples: what any has together, so many values at once, one of these has too."""
    missing = [set(itertools.combinations([(key, str(x)) for key, x in e.items()], together)) for e in examples]
    chosen = []
    while any(missing):
        best = max(range(len(missing)), key=lambda i: len(missing[i]))
        chosen.append(best)
        found = set(missing[best])
        missing = [left - found for left in missing]
    return sorted(chosen)
