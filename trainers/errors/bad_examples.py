"""Finds the example, feature and position that make a loss or metric non-finite.

Non-finite data isn't always wrong: a task may mark missing values with NaN, and mask them. So the failing computation
is repeated with zeros in place of non-finite values. The data is blamed only if the repetition succeeds.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data import Examples
from core.errors import DataError
from core.task import Batch

ADVICE = (
    "Repair such examples or remove them; replace missing values by finite numbers, and give them weight 0 if they "
    "shouldn't count."
)


def unfit_features(batch: Batch) -> list[str]:
    """Names the features of `batch` that contain infinities or NaN."""
    return [key for key, x in batch.items() if x.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(x))]


def blamed_feature(batch: Batch, goes_wrong: Callable[[Batch], bool]) -> str | None:
    """Returns the name of the first feature whose non-finite values make `goes_wrong(batch)` true, or None."""
    unfit = unfit_features(batch)
    clean = {**batch, **{key: tf.where(tf.math.is_finite(x := batch[key]), x, tf.zeros_like(x)) for key in unfit}}
    if not unfit or goes_wrong(clean) or not goes_wrong(batch):
        return None
    return next((key for key in unfit if goes_wrong({**clean, key: batch[key]})), unfit[0])


def unfit_example(
    what: str, source: Examples, feature: str, values: tf.Tensor, indices: npt.NDArray[np.int64]
) -> DataError:
    """Returns a `DataError` that names the example, feature and position of the first non-finite value.

    The message begins with `what`, such as "step 5 is not finite". `indices` [...] holds the numbers of the examples,
    and `values` [..., *the feature's shape] their values.
    """
    rows = values.numpy().reshape([indices.size, -1])
    unfit = ~np.isfinite(rows)
    examples = indices.reshape(-1)[unfit.any(axis=1)]
    row, place = np.argwhere(unfit)[0]
    shape = values.shape[indices.ndim :].as_list()
    where = f" at {[int(i) for i in np.unravel_index(place, shape)]}" if shape else ""
    others = len(set(examples.tolist())) - 1
    more = f"; {others:,} more of these {indices.size:,} examples have non-finite values in it" if others else ""
    example = indices.reshape(-1)[row]
    return DataError(
        f"{what}, because its data isn't: example {example} of source `{source.name}` ({source.place}) "
        f"has {rows[row, place]} in `{feature}`{where}{more}. {ADVICE}"
    )
