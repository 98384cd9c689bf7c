"""Shape checks of layers. They run while tracing, so that wrong shapes raise errors before the first step."""

import math
from typing import Any

import tensorflow as tf

from core.choice import nan


def check_rank(layer: object, x: tf.Tensor, argument: str = "x") -> None:
    """Raises an error if `x` isn't a tensor, or if its rank isn't known while tracing."""
    _check_tensor(layer, x, argument)
    if x.shape.rank is None:
        raise ValueError(
            f"`{argument}` of `{_name(layer)}` has a shape of which nothing is known while tracing; give it one by "
            f"`tf.ensure_shape({argument}, ...)`."
        )


def check_axes(layer: object, x: tf.Tensor, axes: str, argument: str = "x") -> None:
    """Raises an error if `x` lacks an axis that `axes` names, for example "batch, height, width, channels"."""
    _check_tensor(layer, x, argument)
    if x.shape.rank != len(axes.split(", ")):
        raise ValueError(
            f"`{argument}` of `{_name(layer)}` has shape {x.shape}; its axes are [{axes}]: reshape it, or give a part "
            "of it its shape by `tf.ensure_shape`."
        )


def check_floats(layer: object, x: tf.Tensor, argument: str = "x") -> None:
    """Raises an error if `x` holds integers, booleans or strings: a layer's weights can't have such a dtype."""
    _check_tensor(layer, x, argument)
    if not (x.dtype.is_floating or x.dtype.is_complex):
        raise ValueError(
            f"`{argument}` of `{_name(layer)}` is {x.dtype.name}; give floats: `tf.cast({argument}, tf.float32)`."
        )


def check_last(layer: object, x: tf.Tensor, size: int, argument: str, name: str = "x") -> None:
    """Raises an error if `x` isn't floating point, or if its last axis isn't `size` long."""
    check_floats(layer, x, name)
    if x.shape.rank is None or x.shape.rank < 1 or x.shape[-1] is None:
        raise ValueError(
            f"`{name}` of `{_name(layer)}` has shape {x.shape}, whose last axis isn't known while tracing; give it by "
            f"`tf.ensure_shape({name}, [..., {size}])`."
        )
    if x.shape[-1] != size:
        raise ValueError(
            f"`{name}` of `{_name(layer)}` has shape {x.shape}, but the layer was made with `{argument}={size}`; make "
            f"it with `{argument}={x.shape[-1]}`, or feed it a last axis of {size}."
        )


def sizes(x: tf.Tensor) -> list[Any]:
    """Returns the shape of `x`: ints for sizes known while tracing, scalar tensors for the others."""
    known = x.shape.as_list()
    if None not in known:
        return known
    running = tf.shape(x)
    return [running[i] if size is None else size for i, size in enumerate(known)]


def merge_leading(x: tf.Tensor, trailing: int) -> tuple[tf.Tensor, list[Any]]:
    """Flattens all axes of `x` except the last `trailing` into one. Returns `x` and the sizes of the merged axes."""
    leading, rest = sizes(x)[: x.shape.rank - trailing], x.shape[x.shape.rank - trailing :]
    if len(leading) == 1:
        return x, leading
    count = math.prod(leading) if all(isinstance(size, int) for size in leading) else -1
    return tf.reshape(x, [count, *rest]), leading


def widen(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` in the dtype for sums and statistics: float64 if `x` is float64, else float32."""
    return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def add_wide(y: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns `y + b` in the dtype of `y`, with `b` broadcast."""
    # Half precision is widened for the addition: the gradient of `b` is a sum over rows. CPU kernels sum in the dtype
    # of the input, where a sum stops growing after a few hundred bfloat16 rows.
    wide = widen(y)
    return tf.cast(wide + tf.cast(b, wide.dtype), y.dtype)


def add_bias(y: tf.Tensor, b: tf.Tensor | None) -> tf.Tensor:
    """Returns `y + b` over the last axis, in the dtype of `y`."""
    if b is None:
        return y
    return add_wide(y, b) if y.dtype.size < 4 else tf.nn.bias_add(y, tf.cast(b, y.dtype))


def nan_unless(ok: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns `y` where `ok` is true, else NaN. `ok` has the first axes of `y`. (Compiled code can't raise errors.)"""
    # Added, not selected: the gradient then passes unchanged.
    poison = tf.where(ok, tf.zeros([], y.dtype), nan(y.dtype))
    return y + tf.reshape(poison, [*sizes(ok), *[1] * (y.shape.rank - ok.shape.rank)])


def _check_tensor(layer: object, x: object, argument: str = "x") -> None:
    if not tf.is_tensor(x):
        raise TypeError(
            f"`{argument}` of `{_name(layer)}` is of type {type(x).__name__}; give a tensor: `tf.constant({argument})`."
        )


def _name(layer: object) -> str:
    return layer if isinstance(layer, str) else type(layer).__name__
