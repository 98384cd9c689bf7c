"""Fits two non-negative numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Returns `a` and `b` of `seconds ≈ a + b · size`, weighting small times as much as large ones.

    >>> a, b = line([0, 10, 100], [2.0, 7.0, 52.0])
    >>> round(a, 6), round(b, 6)
    (2.0, 0.5)
    """
    times = np.array(seconds, float)
    return pair(1 / times, np.array(sizes) / times, np.ones_like(times))


def pair(first: Any, second: Any, target: Any) -> tuple[float, float]:
    """Returns `a` and `b` ≥ 0 of `target ≈ a · first + b · second` by least squares."""
    columns = np.stack([first, second], axis=1)
    found = np.linalg.lstsq(columns, target, rcond=None)[0]
    if min(found) < 0:  # then one of them is zero
        alone = np.diag(columns.T @ target / (columns**2).sum(0))
        found = min(alone, key=lambda x: float(((columns @ x - target) ** 2).sum()))
    return float(found[0]), float(found[1])
