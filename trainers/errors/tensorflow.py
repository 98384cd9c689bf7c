"""Translates TensorFlow's errors on values and determinism into errors about tasks, sources and settings."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from core.data import Examples, bad_example, unreadable_image
from core.errors import ConfigurationError, DataError

WRONG_ROWS = "`evaluate` must return one value per row of its batch in `per_example`"
REMEDY = (
    "Lower the learning rate, clip gradients (`clip_by_global_norm`), or look for a division, logarithm or square root "
    "of zero in the step function."
)
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explained(source: Examples) -> Iterator[None]:
    """Translates errors that TensorFlow's kernels raise on examples of `source` into errors that name the cause."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if WRONG_ROWS in error.message:
            raise ConfigurationError(
                f"{WRONG_ROWS}: not a mean over the batch, or a tensor of another length. See "
                "docs/testing-your-step.md#what-is-refused."
            ) from None
        damaged = unreadable_image(error.message) or bad_example(error.message)
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


@contextlib.contextmanager
def repeatable_or_refused(deterministic: bool) -> Iterator[None]:
    """Translates TensorFlow's error for an operation without a deterministic kernel."""
    try:
        yield
    except tf.errors.UnimplementedError as error:
        lines = error.message.strip().split("\n")
        first = next((line.strip().rstrip(".") for line in lines if "determinis" in line), None)
        if not deterministic or first is None:
            raise
        raise ConfigurationError(
            "`Experiment.deterministic` is True, but TensorFlow has no deterministic kernel for an operation of this "
            f'step: {first}. Set `Trainer.compile = "off"` if XLA lacks it, or else `Experiment.deterministic = '
            "False`. See docs/running.md#configurations."
        ) from error
