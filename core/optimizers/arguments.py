"""What the factories share: checks of their arguments, rates that may be schedules, and patterns of parameter paths.

A pattern is a shell wildcard. It matches a whole path or its end, and `*` crosses slashes: `b` is every parameter named
`b`, `encoder/*` everything below an `encoder`.
"""

import fnmatch
import math
from collections.abc import Iterable, Sequence

import tensorflow as tf

from core.errors import did_you_mean
from core.optimizers.transform import Schedule, Variables


def check_rate(**values: float | Schedule) -> None:
    """Each is a schedule, or a number that isn't negative."""
    for name, value in values.items():
        if not callable(value) and not value >= 0.0:
            raise ValueError(f"`{name}` is {value!r}; give a number of at least zero, or a schedule.")


def check_fraction(**values: float) -> None:
    """Each is a decay rate, in [0, 1)."""
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"`{name}` is {value!r}; it is the share that is kept at each update: use [0, 1).")


def check_positive(**values: float) -> None:
    """Each is above zero."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"`{name}` is {value!r}; use a number above zero.")


def check_not_negative(**values: float) -> None:
    """Each is zero or more."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"`{name}` is {value!r}; use zero or a number above it.")


def rate_at(rate: float | Schedule, step: tf.Tensor) -> float | tf.Tensor:
    """The rate of this update: a Python number where it is one, so that it folds into the rule's other constants."""
    return rate(step) if callable(rate) else rate


def updates_after(step: tf.Tensor) -> tf.Tensor:
    """The papers' t: one for the first update, as a float."""
    return tf.cast(step + 1, tf.float32)


def newest_share(t: tf.Tensor, beta: float) -> tf.Tensor:
    """What the newest of t values counts for in a moving average that is corrected as it goes."""
    return (beta - 1.0) / tf.math.expm1(t * math.log(beta)) if beta else tf.ones([])


def as_dtype(scalar: float | tf.Tensor, tensor: tf.Tensor) -> float | tf.Tensor:
    """`scalar` in the dtype of `tensor`, at no cost where it has it."""
    return tf.cast(scalar, tensor.dtype) if isinstance(scalar, tf.Tensor) else scalar


def by_dtype(params: Variables) -> list[tuple[tf.DType, Variables]]:
    """The parameters of each dtype: fused kernels want scalars of their variable's, made once for all that share it."""
    dtypes = dict.fromkeys(variable.dtype for variable in params.values())
    return [(dtype, {path: v for path, v in params.items() if v.dtype == dtype}) for dtype in dtypes]


def kernel_scalar(scalar: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`scalar` as the fused kernels want it."""
    return tf.cast(scalar, dtype) if isinstance(scalar, tf.Tensor) else tf.constant(scalar, dtype)


def kernel_shortfall(beta: float, dtype: tf.DType) -> float:
    """1 - β as a kernel computes it in `dtype`, over 1 - β: for 0.999 in float32 that is 1 - 1.3e-5."""
    return float(1.0 - dtype.as_numpy_dtype(beta)) / (1.0 - beta)


def matching(patterns: Sequence[str], paths: Iterable[str], *, argument: str) -> set[str]:
    """The paths that any of the patterns matches. A pattern without a match is an error: it is a misspelling."""
    paths = list(paths)
    if isinstance(patterns, str):
        raise ValueError(f"`{argument}` is the string {patterns!r}; give a list of patterns: [{patterns!r}].")
    found: set[str] = set()
    for pattern in patterns:
        hits = {path for path in paths if fnmatch.fnmatchcase(f"/{path}", f"*/{pattern}")}
        if not hits:
            ends = {path.split("/", i)[-1] for path in paths for i in range(path.count("/") + 1)}
            raise ValueError(
                f"`{argument}` has the pattern {pattern!r}, which matches no parameter."
                f"{did_you_mean(pattern, sorted(ends))} The parameters are: {', '.join(sorted(paths))}."
            )
        found |= hits
    return found
