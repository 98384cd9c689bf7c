"""Euclidean norms of gradients of any size: the square of 1e20 is infinite in float32, and that of 1e-20 is zero.

A sum of squares is one quick pass, so it comes first; only where it left the range of the dtype are the tensors divided
by their largest magnitudes and measured again.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from core.optimizers.transform import Tensors

_LEAST, _MOST = 1e-16, 1e18  # norms whose squares, and those of what counts in them, are in the range of float32


def global_norm(tensors: Tensors) -> tf.Tensor:
    """Returns the Euclidean norm of all tensors taken as one vector; in float64 if one of them is, else in float32.

    It is infinite from 1e19 on, as the squares are that rules average; `any_global_norm` isn't.
    """
    # Half precision would overflow in a sum of squares, and float64 when made narrower.
    wide = _widest(list(tensors.values()))
    halves = [tf.nn.l2_loss(x if x.dtype.size >= 4 else tf.cast(x, wide)) for x in tensors.values()]
    return tf.sqrt(2.0 * tf.add_n([tf.cast(x, wide) for x in halves]))


def any_global_norm(tensors: Tensors) -> tf.Tensor:
    """Returns the same, however large or small the tensors are."""
    return where_in_range([global_norm(tensors)], lambda: [_rescaled(_each(list(tensors.values()), _rescaled))])[0]


def any_norms(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the norm of each tensor by itself, however large or small."""
    return where_in_range([_norm(x) for x in tensors], lambda: [_rescaled(x) for x in tensors])


def where_in_range(
    norms: list[tf.Tensor], rescaled: Callable[[], list[tf.Tensor]], *, least: float = _LEAST
) -> list[tf.Tensor]:
    """Returns `norms`, or what `rescaled` makes of the same where one is so large or small that squares were lost."""
    fine = [tf.reduce_all((norm >= least) & (norm < _MOST)) for norm in norms]
    return list(tf.cond(tf.reduce_all(fine), lambda: norms, rescaled))


def unit_of(x: tf.Tensor, axes: Sequence[int] | None = None) -> tf.Tensor:
    """Returns what to divide `x` by before it is squared: its largest magnitude, unless that is zero or infinite."""
    largest = tf.reduce_max(tf.abs(x), axes, keepdims=axes is not None)
    return tf.where((largest > 0.0) & tf.math.is_finite(largest), largest, tf.ones_like(largest))


def _norm(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(2.0 * tf.nn.l2_loss(x))


def _rescaled(x: tf.Tensor) -> tf.Tensor:
    unit = unit_of(x)
    return unit * _norm(x / unit)


def _each(tensors: Sequence[tf.Tensor], norm: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    wide = _widest(tensors)
    return tf.stack([tf.cast(norm(x if x.dtype.size >= 4 else tf.cast(x, wide)), wide) for x in tensors])


def _widest(tensors: Sequence[tf.Tensor]) -> tf.DType:
    return tf.float64 if any(x.dtype == tf.float64 for x in tensors) else tf.float32
