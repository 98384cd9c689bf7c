"""What a step read, as the bytes of a capsule's `batch.npz`."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainers.replay.capsule.folder import BATCH

_FEATURE = "batch/"  # before each name: one of NumPy's own arguments may be called like a feature


def packed(batch: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Returns the bytes of a file with these arrays."""
    stream, arrays = io.BytesIO(), dict[str, Any]()
    arrays |= {f"{_FEATURE}{key}": x for key, x in batch.items()}
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def read_batch(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns what the step of the capsule at `path` read, [microbatches, rows, ...]."""
    with np.load(path / BATCH, allow_pickle=False) as arrays:
        return {key.removeprefix(_FEATURE): _typed(arrays[key]) for key in arrays.files}


def _typed(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Gives bfloat16 its name back, which files of NumPy don't know."""
    return x.view(tf.bfloat16.as_numpy_dtype) if x.dtype.kind == "V" else x
