"""Whether it is an example that a figure isn't finite for: which one, in which feature, and where in it.

A value that isn't finite is no fault by itself: a task may mark by it what is missing, and select around it. So what
went wrong is done again with zeros in place of such values, and they are blamed only if it then goes well.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data import Examples
from core.errors import DataError
from core.task import Batch

ADVICE = (
    "Repair such examples or leave them out; a value that is missing needs a finite number in its place, and a weight "
    "of 0 where it would count."
)


def unfit_features(batch: Batch) -> list[str]:
    """Names the features of `batch` that hold infinities, or what is no number."""
    return [key for key, x in batch.items() if x.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(x))]


def blamed_feature(batch: Batch, goes_wrong: Callable[[Batch], bool]) -> str | None:
    """Returns the feature of `batch` that makes it go wrong, because its values aren't finite; the first of several."""
    unfit = unfit_features(batch)
    clean = {**batch, **{key: _cleaned(batch[key]) for key in unfit}}
    if not unfit or goes_wrong(clean) or not goes_wrong(batch):
        return None
    return next((key for key in unfit if goes_wrong({**clean, key: batch[key]})), unfit[0])


def unfit_example(
    what: str, source: Examples, feature: str, values: tf.Tensor, indices: npt.NDArray[np.int64]
) -> DataError:
    """Makes the error that says `what` went wrong: `feature` has these `values` in the examples `indices`.

    `indices` [...] has the leading axes of `values` [..., *the feature's shape].
    """
    rows = values.numpy().reshape([indices.size, -1])
    unfit = ~np.isfinite(rows)
    examples = indices.reshape(-1)[unfit.any(axis=1)]
    row, place = np.argwhere(unfit)[0]
    shape = values.shape[indices.ndim :].as_list()
    where = f" at {[int(i) for i in np.unravel_index(place, shape)]}" if shape else ""
    others = len(set(examples.tolist())) - 1
    more = f"; {others:,} more of these {indices.size:,} examples aren't finite in it" if others else ""
    example = indices.reshape(-1)[row]
    return DataError(
        f"{what}, because its data isn't: example {example} of source `{source.name}` ({source.place}) "
        f"has {rows[row, place]} in `{feature}`{where}{more}. {ADVICE}"
    )


def _cleaned(x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))
