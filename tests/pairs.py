"""Combinations for `pytest.mark.parametrize`: every value once in a plain `pytest`, the full product with `long`."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def in_turn(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Returns `(x, *y)` for every `x` and `y`, `long` but for as few as have every `x` and every `y` among them."""
    return [
        pytest.param(x, *y, marks=[] if j == i % len(second) or i == j % len(first) else [pytest.mark.long])
        for (i, x), (j, y) in itertools.product(enumerate(first), enumerate(second))
    ]
