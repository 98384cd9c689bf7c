"""Combinations for `pytest.mark.parametrize`: every value once in a plain `pytest`, the full product with `long`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


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
