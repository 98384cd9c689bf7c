"""Adafactor."""

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_size, is_scheduled
from core.optimizers.moments import averages, moved
from core.optimizers.rates import as_dtype, updates_after
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


def factored_axes(shape: tf.TensorShape, min_size: int) -> tuple[int, int] | None:
    """Returns the second largest and the largest axis of `shape`; `None` if one is shorter than `min_size`."""
    axes = sorted(range(len(shape)), key=lambda axis: int(shape[axis]))  # of equal axes, the later counts as larger
    return (axes[-2], axes[-1]) if len(axes) >= 2 and shape[axes[-2]] >= min_size else None


def without_axis(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns zeros in the shape of `x` without `axis`."""
    return tf.zeros([*x.shape[:axis], *x.shape[axis + 1 :]], x.dtype)


def rms(x: tf.Tensor) -> tf.Tensor:
    """Returns the root mean square of all values of `x`."""
    return tf.sqrt(tf.reduce_mean(tf.square(x)))


@gin.configurable
@schedulable
def adafactor(
    learning_rate: float | Schedule,
    *,
    decay_exponent: float = 0.8,
    clipping_threshold: float = 1.0,
    scale_by_parameter: bool = True,
    min_factored_size: int = 128,
    beta_1: float = 0.0,
    epsilon: float = 1e-30,
) -> Transform:
    """Follows Shazeer and Stern (2018), "Adafactor: adaptive learning rates with sublinear memory cost".

    The update depends on the parameters.

    With `scale_by_parameter`, the rate is `learning_rate` times the parameter's root mean square (at least 1e-3). For
    the paper's rate, min(1e-2, 1/√t), pass a schedule. As in Optax, `beta_1` averages finished updates.
    """
    check_fraction(beta_1=beta_1)
    averaged = is_scheduled(beta_1) or bool(beta_1)
    check_positive(decay_exponent=decay_exponent, clipping_threshold=clipping_threshold, epsilon=epsilon)
    check_size(min_factored_size=min_factored_size)

    def init(params: Tensors) -> State:
        axes = {path: factored_axes(p.shape, min_factored_size) for path, p in params.items()}
        factored = {path: (p, *both) for path, p in params.items() if (both := axes[path])}
        state = {
            "row": {path: without_axis(p, largest) for path, (p, _, largest) in factored.items()},
            "column": {path: without_axis(p, second) for path, (p, second, _) in factored.items()},
            "v": {path: tf.zeros_like(p) for path, p in params.items() if path not in factored},
        }
        return state | ({"m": {path: tf.zeros_like(p) for path, p in params.items()}} if averaged else {})

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        share = tf.pow(updates_after(step), -decay_exponent)
        new: dict[str, dict[str, tf.Tensor]] = {slot: {} for slot in state}
        updates = {}
        for path, g in gradients.items():
            newest, square = as_dtype(share, g), tf.square(g) + epsilon
            if axes := factored_axes(g.shape, min_factored_size):
                second, largest = axes
                row = moved(state["row"][path], tf.reduce_mean(square, largest), newest)
                column = moved(state["column"][path], tf.reduce_mean(square, second), newest)
                new["row"][path], new["column"][path] = row, column
                mean = tf.reduce_mean(row, second - 1 if second > largest else second, keepdims=True)
                u = g * tf.expand_dims(tf.math.rsqrt(row / mean), largest)
                u *= tf.expand_dims(tf.math.rsqrt(column), second)
            else:
                new["v"][path] = moved(state["v"][path], square, newest)
                u = g * tf.math.rsqrt(new["v"][path])
            u /= tf.maximum(rms(u) / clipping_threshold, 1.0)
            u *= as_dtype(rate, u) * (tf.maximum(rms(params[path]), 1e-3) if scale_by_parameter else 1.0)
            if averaged:
                u = new["m"][path] = averages({path: state["m"][path]}, {path: u}, beta_1)[path]
            updates[path] = -u
        return updates, new

    return rule("adafactor", init, scale, learning_rate)
