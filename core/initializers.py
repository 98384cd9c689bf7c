"""Initializers of parameters. Each factory returns a function `(rng, shape, dtype=tf.float32) -> tensor`.

    >>> from core.random import Rng
    >>> he_normal()(Rng.from_seed(0), [3, 3, 16, 32]).shape
    TensorShape([3, 3, 16, 32])

A kernel's shape is `[..., inputs, outputs]`; earlier axes are a convolution's window. An integer dtype raises an error,
because most draws would be zero.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from core.arguments import check_choice, check_finite
from core.random import Rng, is_undrawn

Announce = Callable[[int], object]

_announce: contextvars.ContextVar[Announce] = contextvars.ContextVar("announce", default=lambda size: None)


@contextlib.contextmanager
def announced(to: Announce) -> Iterator[None]:
    """In its `with` block, calls `to(bytes)` before each initial value is made, with the value's size."""
    token = _announce.set(to)
    try:
        yield
    finally:
        _announce.reset(token)


class Initializer(Protocol):
    """Makes the initial value of a parameter from random numbers and a shape."""

    def __call__(self, rng: Rng, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Returns the initial value; it depends on `rng`, `shape` and `dtype` alone."""


def constant(value: float) -> Initializer:
    """Fills a parameter with `value`."""
    check_finite(value=value)
    return _of_floats("constant", lambda rng, shape, dtype: tf.fill(shape, tf.cast(value, dtype)))


def zeros() -> Initializer:
    """Fills a parameter with zeros."""
    return _of_floats("zeros", constant(0.0))


def ones() -> Initializer:
    """Fills a parameter with ones."""
    return _of_floats("ones", constant(1.0))


def normal(stddev: float = 1.0, mean: float = 0.0) -> Initializer:
    """Draws from a normal distribution with this mean and standard deviation."""
    check_finite(mean=mean)
    _check_not_negative("stddev", stddev)
    return _of_floats("normal", lambda rng, shape, dtype: tf.cast(mean + stddev * rng.normal(shape), dtype))


def truncated_normal(stddev: float = 1.0, mean: float = 0.0) -> Initializer:
    """Draws from a normal distribution cut off at 2 `stddev` on each side. The result's deviation is 0.88 `stddev`."""
    check_finite(mean=mean)
    _check_not_negative("stddev", stddev)
    return _of_floats(
        "truncated_normal", lambda rng, shape, dtype: tf.cast(mean + stddev * rng.truncated_normal(shape), dtype)
    )


def uniform(low: float = -0.05, high: float = 0.05) -> Initializer:
    """Draws uniformly from [low, high)."""
    check_finite(low=low, high=high)
    if low > high:
        raise ValueError(f"`low` is {low} and `high` is {high}; swap them.")
    return _of_floats("uniform", lambda rng, shape, dtype: tf.cast(rng.uniform(shape, low, high), dtype))


def variance_scaling(scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal") -> Initializer:
    """Draws with zero mean and variance `scale / fan`, which keeps the size of activations from layer to layer.

    `mode` selects the fan. `fan_in` is the number of inputs of one output. `fan_out` is the number of outputs of one
    input. `fan_avg` is their mean. `distribution` is `truncated_normal`, `normal` or `uniform`.
    """
    _check_not_negative("scale", scale)
    check_choice("mode", mode, ("fan_in", "fan_out", "fan_avg"))
    check_choice("distribution", distribution, ("truncated_normal", "normal", "uniform"))

    def make(rng: Rng, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        fan_in, fan_out = fans(shape)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
        stddev = math.sqrt(scale / max(1.0, fan))
        if distribution == "uniform":
            limit = math.sqrt(3.0) * stddev
            return uniform(-limit, limit)(rng, shape, dtype)
        if distribution == "normal":
            return normal(stddev)(rng, shape, dtype)
        return truncated_normal(stddev / _TRUNCATED_STDDEV)(rng, shape, dtype)

    return _of_floats("variance_scaling", make)


def glorot_normal() -> Initializer:
    """Draws with variance 2 / (fan_in + fan_out), truncated normal (Glorot and Bengio, 2010)."""
    return _of_floats("glorot_normal", variance_scaling(1.0, "fan_avg", "truncated_normal"))


def glorot_uniform() -> Initializer:
    """Draws with variance 2 / (fan_in + fan_out), uniform (Glorot and Bengio, 2010)."""
    return _of_floats("glorot_uniform", variance_scaling(1.0, "fan_avg", "uniform"))


def he_normal() -> Initializer:
    """Draws with variance 2 / fan_in, truncated normal, for layers before a ReLU (He et al., 2015)."""
    return _of_floats("he_normal", variance_scaling(2.0, "fan_in", "truncated_normal"))


def he_uniform() -> Initializer:
    """Draws with variance 2 / fan_in, uniform, for layers before a ReLU (He et al., 2015)."""
    return _of_floats("he_uniform", variance_scaling(2.0, "fan_in", "uniform"))


def lecun_normal() -> Initializer:
    """Draws with variance 1 / fan_in, truncated normal (LeCun et al., 1998)."""
    return _of_floats("lecun_normal", variance_scaling(1.0, "fan_in", "truncated_normal"))


def lecun_uniform() -> Initializer:
    """Draws with variance 1 / fan_in, uniform (LeCun et al., 1998)."""
    return _of_floats("lecun_uniform", variance_scaling(1.0, "fan_in", "uniform"))


def orthogonal(gain: float = 1.0) -> Initializer:
    """Draws a matrix with orthonormal columns, or with orthonormal rows if there are fewer rows (Saxe et al., 2014)."""
    check_finite(gain=gain)

    def make(rng: Rng, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        _check_matrix("orthogonal", shape)
        rows, columns = math.prod(shape[:-1]), shape[-1]
        drawn = rng.normal([max(rows, columns), min(rows, columns)])
        q, r = tf.linalg.qr(tf.cast(drawn, tf.float64) if dtype == tf.float64 else drawn)
        # QR doesn't determine signs; a positive diagonal of R makes Q uniform over all orthogonal matrices.
        diagonal = tf.linalg.diag_part(r)
        q *= tf.cast(tf.where(diagonal < 0.0, -1.0, 1.0), q.dtype)
        q = tf.transpose(q) if rows < columns else q
        return tf.cast(gain * tf.reshape(q, shape), dtype)

    return _of_floats("orthogonal", make)


def delta_orthogonal(gain: float = 1.0) -> Initializer:
    """Draws a convolution kernel: an orthogonal matrix at the window's centre, zero elsewhere (Xiao et al., 2018)."""
    check_finite(gain=gain)

    def make(rng: Rng, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        _check_matrix("delta_orthogonal", shape)
        *_, inputs, outputs = shape
        if inputs > outputs:
            raise ValueError(
                f"`shape` of `delta_orthogonal` is {tuple(shape)}: {inputs} input channels can't keep their length in "
                f"{outputs} outputs; use `orthogonal` for this layer."
            )
        return _at_centre(orthogonal(gain)(rng, [inputs, outputs], dtype), shape)

    return _of_floats("delta_orthogonal", make)


def identity(gain: float = 1.0) -> Initializer:
    """Makes the identity matrix. A convolution kernel has it at the window's centre, and zeros elsewhere."""
    check_finite(gain=gain)

    def make(rng: Rng, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        _check_matrix("identity", shape)
        return _at_centre(tf.cast(gain, dtype) * tf.eye(shape[-2], shape[-1], dtype=dtype), shape)

    return _of_floats("identity", make)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Returns `(fan_in, fan_out)` of a kernel: the inputs of one output, and the outputs of one input."""
    _check_matrix("fans", shape)
    *window, inputs, outputs = shape
    return math.prod(window) * inputs, math.prod(window) * outputs


# The standard deviation of a standard normal cut off at two.
_TRUNCATED_STDDEV = math.sqrt(1.0 - 4.0 * math.exp(-2.0) / math.sqrt(2.0 * math.pi) / math.erf(math.sqrt(2.0)))


def _of_floats(name: str, make: Callable[[Rng, Sequence[int], tf.DType], tf.Tensor]) -> Initializer:
    """Wraps `make` so that dtypes that aren't floating point raise a `ValueError`."""

    def checked(rng: Rng, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
        dtype = tf.as_dtype(dtype)
        if not (dtype.is_floating or dtype.is_complex):
            raise ValueError(
                f"`dtype` of `{name}` is {dtype.name}; parameters are floats: leave it out, or `tf.cast` what it makes."
            )
        shape = _numbers(name, shape)
        if is_undrawn():
            return tf.zeros(shape, dtype)
        _announce.get()(math.prod(shape) * dtype.size)
        return make(rng, shape, dtype)

    return checked


def _numbers(name: str, shape: Any) -> list[int]:
    """Returns a shape as a list of integers. `shape` may be a tensor whose value tracing knows."""
    known = tf.get_static_value(shape) if tf.is_tensor(shape) else shape
    if known is None:
        raise ValueError(
            f"`shape` of `{name}` is a tensor whose value isn't known while tracing; a parameter has a fixed size: "
            "give numbers, as `x.shape` has them, not `tf.shape(x)`."
        )
    return [int(size) for size in known]


def _at_centre(matrix: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    window = shape[:-2]
    paddings = [((size - 1) // 2, size // 2) for size in window] + [(0, 0), (0, 0)]
    return tf.pad(tf.reshape(matrix, [1] * len(window) + list(shape[-2:])), paddings)


def _check_matrix(name: str, shape: Sequence[int]) -> None:
    if len(shape) < 2:
        raise ValueError(
            f"`shape` of `{name}` is {tuple(shape)}: it needs inputs and outputs as its last two axes; "
            "use `constant`, `normal` or `uniform` for a vector."
        )


def _check_not_negative(name: str, value: float) -> None:
    check_finite(**{name: value})
    if value < 0.0:
        raise ValueError(f"`{name}` is {value}; give zero or more.")
