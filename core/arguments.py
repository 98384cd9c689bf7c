"""Checks of arguments when an object is made, so that a mistake is found before the first step.

Pass a number as a keyword argument; errors call it by that keyword: `check_positive(epsilon=epsilon)`. Tensors are
checked by their static shapes.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard

import tensorflow as tf

from core.errors import shown

MOST = 2**31 - 1  # limit of integers in settings, so that steps times examples fit in 64 bits


def check_size(**sizes: int) -> None:
    """Raises a `ValueError` unless each of `sizes` is an integer of at least 1."""
    for name, size in sizes.items():
        if not is_size(size):
            raise ValueError(f"`{name}` is {shown(size)}; give a whole number of at least 1.")


def is_size(value: object) -> TypeGuard[int]:
    """Says whether `value` is an integer of at least one."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def is_count(value: object) -> TypeGuard[int]:
    """Says whether `value` is an integer of at least zero."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def check_count(**counts: int) -> None:
    """Raises a `ValueError` unless each of `counts` is an integer of at least 0."""
    for name, count in counts.items():
        if not is_count(count):
            raise ValueError(f"`{name}` is {shown(count)}; give a whole number of at least 0.")


_tensors_pass: contextvars.ContextVar[bool] = contextvars.ContextVar("tensors_pass", default=False)


@contextlib.contextmanager
def unchecked_tensors() -> Iterator[None]:
    """Makes checks of numbers accept tensors, the values of schedules, in its context."""
    token = _tensors_pass.set(True)
    try:
        yield
    finally:
        _tensors_pass.reset(token)


def is_scheduled(value: Any) -> bool:
    """Says whether `value` is that of a schedule, which is a tensor."""
    return isinstance(value, tf.Tensor) and _tensors_pass.get()


def _checked(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, x) for name, x in values.items() if not is_scheduled(x)]


def check_finite(**values: float) -> None:
    """Raises a `ValueError` if one of `values` is infinite, NaN or no number."""
    for name, value in _checked(values):
        _check_number(name, value)


def check_positive(**values: float) -> None:
    """Raises a `ValueError` unless each of `values` is finite and above 0."""
    for name, value in _checked(values):
        _check_number(name, value)
        if not value > 0:
            raise ValueError(f"`{name}` is {shown(value)}; it is above 0: give a larger number.")


def check_not_negative(**values: float) -> None:
    """Raises a `ValueError` unless each of `values` is finite and at least 0."""
    for name, value in _checked(values):
        _check_number(name, value)
        if not value >= 0:
            raise ValueError(f"`{name}` is {shown(value)}; it is at least 0: give zero or a number above it.")


def check_fraction(**values: float) -> None:
    """Raises a `ValueError` unless each of `values` is in [0, 1), such as a dropout rate."""
    for name, value in _checked(values):
        if not is_number(value) or not 0.0 <= value < 1.0:
            raise ValueError(f"`{name}` is {shown(value)}; give a fraction in [0, 1), such as 0.1.")


def check_rate(**values: Any) -> None:
    """Raises a `ValueError` unless each of `values` is a schedule, or a finite number of at least 0."""
    for name, value in values.items():
        if isinstance(value, tf.Variable):
            raise ValueError(f"`{name}` is a variable; give a schedule that reads it: `{name}=lambda step: variable`.")
        if callable(value):
            continue
        _check_number(name, value, "or a schedule: `lambda step: ...`")
        if not value >= 0.0:
            raise ValueError(f"`{name}` is {shown(value)}; give a number of at least zero, or a schedule.")


def _check_number(name: str, value: object, instead: str = "not a tensor, a string or a bool") -> None:
    if not is_number(value):
        raise ValueError(
            f"`{name}` is {shown(value)}, of type {type(value).__name__}; give a Python number, {instead}."
        )
    if not _is_finite(value):
        raise ValueError(f"`{name}` is {shown(value)}; give a finite number.")


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def is_number(value: object, kind: type = Real) -> bool:
    """Says whether `value` is a number of type `kind`, such as `Integral`. A bool doesn't count."""
    return isinstance(value, kind) and not isinstance(value, bool)


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raises a `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` is {shown(value)}; give one of {', '.join(map(shown, choices))}.")


def check_groups(name: str, groups: int, **channels: int) -> None:
    """Raises a `ValueError` unless `groups` divides each of the numbers of `channels`."""
    for what, count in channels.items():
        if count % groups:
            raise ValueError(f"`{name}` is {groups}, which doesn't divide `{what}={count}`; give a divisor.")


def floats(name: str, value: Any, *, min_rank: int = 0, axes: str = "") -> tf.Tensor:
    """Converts floats to float32; float64 stays float64. Other dtypes raise a `ValueError`."""
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating:
        raise ValueError(f"`{name}` is {value.dtype.name}; give floats: `tf.cast({name}, tf.float32)`.")
    if value.shape.rank is not None and value.shape.rank < min_rank:
        raise ValueError(f"`{name}` has shape {value.shape}; it needs the axes {axes}.")
    return value if value.dtype == tf.float64 else tf.cast(value, tf.float32)


def targets_like(name: str, value: Any, like_name: str, like: tf.Tensor) -> tf.Tensor:
    """Converts `value` to the dtype of `like`. If their shapes differ, it raises a `ValueError`."""
    return shaped_like(name, tf.cast(tf.convert_to_tensor(value), like.dtype), like_name, like)


def class_indices(name: str, value: Any, logits_name: str, logits: tf.Tensor) -> tf.Tensor:
    """Returns class indices (int32 or int64) with the shape of `logits` [..., classes] without its last axis."""
    value = integers(name, value)
    if None not in (value.shape.rank, logits.shape.rank) and value.shape.rank == logits.shape.rank:
        raise ValueError(
            f"`{name}` has shape {value.shape}, as many axes as `{logits_name}`, but integers are class indices, "
            f"without a class axis: `tf.squeeze({name}, -1)`; one-hot labels are floats: `tf.cast({name}, tf.float32)`."
        )
    return shaped_like(name, value, logits_name, logits, leading=-1)


def integers(name: str, value: Any) -> tf.Tensor:
    """Converts `value` to int32 or int64. If it isn't of an integer type, it raises a `ValueError`."""
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_integer:
        raise ValueError(f"`{name}` is {value.dtype.name}; give integers: `tf.cast({name}, tf.int32)`.")
    return value if value.dtype in (tf.int32, tf.int64) else tf.cast(value, tf.int64)


def shaped_like(
    name: str, value: tf.Tensor, like_name: str, like: tf.Tensor, *, leading: int | None = None
) -> tf.Tensor:
    """Returns `value`. A shape other than `like.shape[:leading]` raises an error: it would be broadcast."""
    expected = like.shape[:leading]
    if not value.shape.is_compatible_with(expected):
        raise ValueError(
            f"`{name}` has shape {value.shape}, but `{like_name}` {like.shape} needs {expected}; "
            "make them match first (`tf.squeeze`, `tf.reshape`, `tf.broadcast_to`)."
        )
    if value.shape.is_fully_defined() and expected.is_fully_defined():
        return value
    # `stack` raises on unequal shapes at run time, under XLA too, where assertions are dropped.
    return tf.unstack(tf.stack([tf.zeros(tf.shape(like)[:leading], value.dtype), value]), num=2)[1]


def listed(names: Iterable[str], *, most: int | None = None, quote: str = "`") -> str:
    """Joins names for a sentence of an error: the first `most` in backticks, then the number of the others.

    >>> listed(["w", "b", "scale"], most=2)
    '`w`, `b` and 1 more'
    """
    names = list(names)
    left_out = 0 if most is None else max(0, len(names) - most)
    shown = names[: len(names) - left_out]
    return ", ".join(f"{quote}{name}{quote}" for name in shown) + (f" and {left_out} more" if left_out else "")
