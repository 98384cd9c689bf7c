"""Converts a step's batch to the bytes of a capsule's `batch.npz`, and reads it from that file."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainers.replay.capsule.folder import BATCH

_FEATURE = "batch/"  # prefix: feature names may equal NumPy's argument names


def packed(batch: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Returns the bytes of an `.npz` file with the arrays in `batch`."""
    stream, arrays = io.BytesIO(), dict[str, Any]()
    arrays |= {f"{_FEATURE}{key}": x for key, x in batch.items()}
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def read_batch(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns the batch of the capsule at `path`, each feature [microbatches, rows, ...]."""
    with np.load(path / BATCH, allow_pickle=False) as arrays:
        found = {key.removeprefix(_FEATURE): arrays[key] for key in arrays.files}
    # NumPy's files store bfloat16 as raw bytes.
    return {key: x.view(tf.bfloat16.as_numpy_dtype) if x.dtype.kind == "V" else x for key, x in found.items()}
