"""Converts stored numbers to float32, in which steps compute."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from core.errors import DataError


def as_float32(
    values: npt.NDArray[Any], name: Callable[[], str], error: type[DataError] = DataError
) -> npt.NDArray[np.float32]:
    """Converts `values`, called `name()`; raises an `error` for a number that is too large for float32.

    >>> as_float32(np.array([1.5, np.inf]), lambda: "`x`")
    array([1.5, inf], dtype=float32)
    """
    with np.errstate(over="ignore"):
        kept = values.astype(np.float32, copy=False)
    if values.dtype.itemsize > 4 and not np.isfinite(kept).all():
        lost = values[np.isinf(kept) & np.isfinite(values)]
        if lost.size:
            raise error(
                f"{name()} holds {lost[0]:g}, which doesn't fit into float32, in which steps compute; scale it, "
                "or leave the example out."
            )
    return kept
