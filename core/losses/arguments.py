"""What every loss asks of its arguments, checked while tracing, from static shapes."""

from typing import Any

import tensorflow as tf


def floats(name: str, value: Any, *, min_rank: int = 0, axes: str = "") -> tf.Tensor:
    """`value` as float32, or float64 where it is given so: half precision ends where a loss begins."""
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating:
        raise ValueError(f"`{name}` is {value.dtype.name}; give floats: `tf.cast({name}, tf.float32)`.")
    if value.shape.rank is not None and value.shape.rank < min_rank:
        raise ValueError(f"`{name}` has shape {value.shape}; it needs the axes {axes}.")
    return value if value.dtype == tf.float64 else tf.cast(value, tf.float32)


def targets_like(name: str, value: Any, like_name: str, like: tf.Tensor) -> tf.Tensor:
    """`value`, numbers of any type, with the dtype of `like`, and surely of its shape."""
    return shaped_like(name, tf.cast(tf.convert_to_tensor(value), like.dtype), like_name, like)


def class_indices(name: str, value: Any, logits_name: str, logits: tf.Tensor) -> tf.Tensor:
    """`value` as int32 or int64 class indices, one for each row of `logits` [..., classes]."""
    value = integers(name, value)
    if None not in (value.shape.rank, logits.shape.rank) and value.shape.rank == logits.shape.rank:
        raise ValueError(
            f"`{name}` has shape {value.shape}, as many axes as `{logits_name}`, but integers are class indices, "
            f"without a class axis: `tf.squeeze({name}, -1)`; one-hot labels are floats: `tf.cast({name}, tf.float32)`."
        )
    return shaped_like(name, value, logits_name, logits, leading=-1)


def integers(name: str, value: Any) -> tf.Tensor:
    """`value` as int32 or int64."""
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_integer:
        raise ValueError(f"`{name}` is {value.dtype.name}; give integers: `tf.cast({name}, tf.int32)`.")
    return value if value.dtype in (tf.int32, tf.int64) else tf.cast(value, tf.int64)


def shaped_like(
    name: str, value: tf.Tensor, like_name: str, like: tf.Tensor, *, leading: int | None = None
) -> tf.Tensor:
    """`value`, surely of the shape of `like`, or of its `leading` axes: broadcasting would give wrong numbers."""
    expected = like.shape[:leading]
    if not value.shape.is_compatible_with(expected):
        raise ValueError(
            f"`{name}` has shape {value.shape}, but `{like_name}` {like.shape} asks for {expected}; "
            "bring the two together first (`tf.squeeze`, `tf.reshape`, `tf.broadcast_to`)."
        )
    if value.shape.is_fully_defined() and expected.is_fully_defined():
        return value
    # `stack` refuses unequal shapes while running, under XLA too, where assertions are dropped.
    return tf.unstack(tf.stack([tf.zeros(tf.shape(like)[:leading], value.dtype), value]), num=2)[1]


def binary(
    logits: Any, labels: Any, ignore: int | None, *, soft: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Logits, their labels 0 or 1 as floats (`nan` for any other; `soft`: outside [0, 1]), and which are ignored.

    Where a label is ignored, label and logit are replaced by zero: a zero gradient times a logit that isn't finite
    would still be `nan`.
    """
    logits = floats("logits", logits)
    labels = targets_like("labels", labels, "logits", logits)
    ignored = None if ignore is None else tf.equal(labels, tf.cast(ignore, labels.dtype))
    labels, logits = zero_where(ignored, labels), zero_where(ignored, logits)
    valid = (labels >= 0.0) & (labels <= 1.0) if soft else tf.equal(labels, 0.0) | tf.equal(labels, 1.0)
    return logits, tf.where(valid, labels, nan(labels.dtype)), ignored


def zero_where(condition: tf.Tensor | None, value: tf.Tensor) -> tf.Tensor:
    """`value`, with zeros (and no gradient) where `condition` holds; as it is without one."""
    return value if condition is None else tf.where(condition, tf.zeros_like(value), value)


def nan(dtype: tf.DType) -> tf.Tensor:
    """Not a number: what a figure is when its input makes no sense on a device that can't raise."""
    return tf.constant(float("nan"), dtype)


def fraction(name: str, value: float) -> float:
    """`value` if it is in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` is {value}; it is a fraction in [0, 1), such as 0.1.")
    return value


def not_negative(name: str, value: float) -> float:
    """`value` if it is at least zero."""
    if not value >= 0.0:
        raise ValueError(f"`{name}` is {value}; it is at least 0.")
    return value


def positive(name: str, value: float) -> float:
    """`value` if it is above zero."""
    if not value > 0.0:
        raise ValueError(f"`{name}` is {value}; it is above 0.")
    return value
