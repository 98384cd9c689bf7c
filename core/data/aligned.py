"""Arrays whose memory TensorFlow takes over as it is, where it would copy that of others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_BOUNDARY = 64  # bytes: `EIGEN_MAX_ALIGN_BYTES`, where a tensor's memory has to begin


def aligned_empty(shape: Sequence[int], dtype: Any) -> npt.NDArray[Any]:
    """Makes an array of any values; one of objects is like any other."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _BOUNDARY, np.uint8)
    first = -raw.ctypes.data % _BOUNDARY
    return raw[first : first + size].view(dtype).reshape(shape)


def aligned_join(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Returns the parts one after the other, along their first axis."""
    first = parts[0]
    return np.concatenate(parts, out=aligned_empty([sum(map(len, parts)), *first.shape[1:]], first.dtype))
