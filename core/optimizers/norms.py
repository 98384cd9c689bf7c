"""Euclidean norms of gradients of any size: the square of 1e20 is infinite in float32, and that of 1e-20 is zero.

The plain sum of squares is tried first, since it is one quick pass. If it overflows or underflows, the tensors are
divided by their largest magnitude (the unit) and measured again. The true norm may still overflow. So functions return
the divided tensor and its norm, whose quotient is the direction.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from core.optimizers.sharing import is_sharing
from core.optimizers.transform import Tensors
from core.tracing import in_xla, in_xla_on_cpu

_FEW, _COLUMNS = 2048, 128  # so few values are summed directly; more are summed in rows of so many columns
LEAST, _MOST = 1e-16, 1e18  # norms whose squares, and those of the values that matter, are in float32's range

Measured = tuple[tf.Tensor, tf.Tensor, tf.Tensor]  # a tensor over its unit, the norm of that, and the unit


def global_norm(tensors: Tensors) -> tf.Tensor:
    """Returns the Euclidean norm of all tensors as one vector; in float64 if one of them is, else in float32.

    The norm is infinite from 1e19 on, because squares overflow; `measured_together` avoids this.
    """
    # A sum of squares would overflow in half precision, and float64 if made narrower.
    wide = _widest(list(tensors.values()))
    halves = [half_of_squares(x if x.dtype.size >= 4 else tf.cast(x, wide)) for x in tensors.values()]
    # Doubled after they are added up: a mesh then reduces all tensors' parts at once.
    halves = [tf.cast(x, wide) for x in halves]
    # `add_n` adds first what it may overwrite. Outside of a condition that differs between replicas, and so would sums.
    return tf.sqrt(2.0 * (tf.reduce_sum(tf.stack(halves)) if is_sharing() else tf.add_n(halves)))


def dot(x: Tensors, y: Tensors) -> tf.Tensor:
    """Returns the inner product ⟨x, y⟩ over all tensors, in float32."""
    return _sum([tf.reduce_sum(values * y[path]) for path, values in x.items()])


def sum_of_magnitudes(tensors: Tensors) -> tf.Tensor:
    """Returns ‖x‖₁ over all tensors, in float32."""
    return _sum([tf.reduce_sum(tf.abs(x)) for x in tensors.values()])


def _sum(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    # Not by `add_n`, which adds a scalar parameter's share first or last, depending on which buffer it may overwrite.
    return tf.reduce_sum(tf.stack([tf.cast(x, tf.float32) for x in scalars]))


def half_of_squares(x: tf.Tensor) -> tf.Tensor:
    """Returns half the sum of the squares of `x`, in one pass."""
    if not in_xla():
        return tf.nn.l2_loss(x)
    # XLA adds numbers up one after another, each waiting for the last; a matmul with ones it vectorises. And next to an
    # `l2_loss` in a loop, XLA copies everything that the loop carries.
    if not in_xla_on_cpu() or (x.shape.num_elements() or 0) < _FEW:
        return 0.5 * tf.reduce_sum(tf.square(x))
    x = tf.reshape(x, [-1])
    whole = x.shape[0] // _COLUMNS * _COLUMNS
    rows = tf.reshape(x[:whole], [-1, _COLUMNS])
    in_rows = tf.reduce_sum(tf.linalg.matvec(tf.square(rows), tf.ones([_COLUMNS], x.dtype)))
    return 0.5 * (in_rows + tf.reduce_sum(tf.square(x[whole:])))


def measured_together(tensors: Tensors, *, least: float = LEAST) -> tuple[Tensors, tf.Tensor, tf.Tensor]:
    """Returns `(tensors / unit, their norm as one vector, unit)`; the unit is 1 unless squares leave the range."""
    norm = global_norm(tensors)

    def rescaled() -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        unit = unit_of(tf.stack([tf.cast(tf.reduce_max(tf.abs(x)), norm.dtype) for x in tensors.values()]))
        over = {path: x / tf.cast(unit, x.dtype) for path, x in tensors.items()}
        return list(over.values()), global_norm(over), unit

    as_it_is = list(tensors.values()), norm, tf.ones_like(norm)
    over, norm, unit = tf.cond(_in_range(norm, least), lambda: as_it_is, rescaled)
    return dict(zip(tensors, over, strict=True)), norm, unit


def measured(
    tensors: Sequence[tf.Tensor],
    norm_of: Callable[[tf.Tensor], tf.Tensor] = lambda x: tf.sqrt(2.0 * half_of_squares(x)),
    axes_of: Callable[[tf.Tensor], Sequence[int] | None] = lambda x: None,
    *,
    least: float = LEAST,
) -> list[Measured]:
    """Returns `(x / unit, norm of x / unit, unit)` for each tensor; the unit is 1 unless squares leave the range.

    If `axes_of(x)` returns axes, norms and units are computed over these axes alone; otherwise over all of `x`.
    """
    norms = [norm_of(x) for x in tensors]
    as_they_are = [(x, norm, tf.ones_like(norm)) for x, norm in zip(tensors, norms, strict=True)]

    def rescaled(x: tf.Tensor) -> Measured:
        unit = unit_of(x, axes_of(x))
        over = x / unit
        return over, norm_of(over), unit

    def one_by_one() -> list[Measured]:
        return [
            tf.cond(_in_range(known[1], least), lambda known=known: known, lambda known=known: rescaled(known[0]))
            for known in as_they_are
        ]

        # One condition for all norms at once, so the usual case pays for only one.

    wide = _widest(tensors)
    all_norms = tf.concat([tf.reshape(tf.cast(norm, wide), [-1]) for norm in norms], 0)
    return list(tf.cond(_in_range(all_norms, least), lambda: as_they_are, one_by_one))


def _in_range(norm: tf.Tensor, least: float) -> tf.Tensor:
    """Says whether every norm in `norm` is at least `least`, and small enough that squares don't overflow."""
    return tf.reduce_all((norm >= least) & (norm < _MOST))


def unit_of(x: tf.Tensor, axes: Sequence[int] | None = None) -> tf.Tensor:
    """Returns the largest magnitude in `x`, to divide by before squaring; 1 if that is zero or infinite."""
    largest = tf.reduce_max(tf.abs(x), axes, keepdims=axes is not None)
    return tf.where((largest > 0.0) & tf.math.is_finite(largest), largest, tf.ones_like(largest))


def _widest(tensors: Sequence[tf.Tensor]) -> tf.DType:
    return tf.float64 if any(x.dtype == tf.float64 for x in tensors) else tf.float32
