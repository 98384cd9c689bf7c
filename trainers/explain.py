"""Errors of TensorFlow's kernels in terms of what the user gave."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from core.data import Source, unreadable_image
from core.errors import ConfigurationError, DataError

WRONG_ROWS = "`evaluate` must return one value per row of its batch in `per_example`"
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explained(source: Source) -> Iterator[None]:
    """Around computing with examples of `source`: what only shows in the values becomes a `DataError`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if WRONG_ROWS in error.message:
            raise ConfigurationError(
                f"{WRONG_ROWS}: not a mean over the batch, nor anything else of another length."
            ) from None
        damaged = unreadable_image(error.message)
        if damaged is not None:
            raise damaged from error
        found = _LABEL.search(error.message)
        if found is None:
            raise
        label, classes = found.groups()
        raise DataError(
            f"a label of source `{source.name}` is {label}, but the network has {classes} outputs, for classes 0 to "
            f"{int(classes) - 1}: renumber the labels, or give the network more outputs."
        ) from error
