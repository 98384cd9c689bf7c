"""Helpers of the assertions: tensors from a batch, the training step to test at, and differences of results."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

HALFWAY: Any = {"step": 500, "progress": 0.5}  # where an annealed weight is neither zero nor at its end
NEAR_THE_ENDS: Any = ({"step": 20, "progress": 0.02}, {"step": 980, "progress": 0.98})


def as_tensors(batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the batch as `{name: tensor [rows, ...]}`. Ragged and sparse tensors raise an error."""
    for key, x in batch.items():
        assert not isinstance(x, tf.RaggedTensor | tf.SparseTensor), (
            f"`{key}` of the batch is a {type(x).__name__}, but rows of a batch have one length: pad them, and give "
            "what is padded a `weight` of zero."
        )
    return {key: tf.convert_to_tensor(x) for key, x in batch.items()}


def relative(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns |one - other| / max(1, |one|) per element.

    Equal infinities and two NaN give 0. A single NaN gives infinity.
    """
    with np.errstate(invalid="ignore"):
        distances = np.abs(one - other) / np.maximum(1.0, np.abs(one))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isnan(distances), np.inf, distances))
