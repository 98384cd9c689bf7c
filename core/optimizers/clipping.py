"""Gradient clipping; in a chain, put it before the rule: `chain(clip_by_norm(1.0), adam(1e-3))`."""

import gin
import tensorflow as tf

from core.arguments import check_positive
from core.optimizers.norms import LEAST, measured, measured_together
from core.optimizers.rates import as_dtype
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Tensors, Transform, stateless


@gin.configurable
@schedulable
def clip_by_value(max_value: float) -> Transform:
    """Clips every number of a gradient to the range [-max_value, max_value]."""
    check_positive(max_value=max_value)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        return {path: tf.clip_by_value(g, -max_value, max_value) for path, g in gradients.items()}

    return stateless("clip_by_value", rule)


@gin.configurable
@schedulable
def clip_by_norm(max_norm: float) -> Transform:
    """Scales each gradient separately to a norm of at most `max_norm`."""
    check_positive(max_norm=max_norm)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        found = zip(gradients, measured(list(gradients.values()), least=_least(max_norm)), strict=True)
        return {path: over * _scale(max_norm, norm, unit) for path, (over, norm, unit) in found}

    return stateless("clip_by_norm", rule)


@gin.configurable
@schedulable
def clip_by_global_norm(max_norm: float) -> Transform:
    """Follows Pascanu et al. (2013), "On the difficulty of training recurrent neural networks".

    Scales all gradients together to at most the norm `max_norm` (PyTorch to slightly less: it adds 1e-6 to the norm).
    """
    check_positive(max_norm=max_norm)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        return clipped_together(gradients, max_norm, least=_least(max_norm))

    return stateless("clip_by_global_norm", rule)


def clipped_together(gradients: Tensors, max_norm: Rate, *, least: float = 0.0) -> Tensors:
    """Returns `gradients`, scaled together to at most the norm `max_norm`; norms below `least` are measured again."""
    over, norm, unit = measured_together(gradients, least=least)
    scale = _scale(as_dtype(max_norm, norm), norm, unit)
    return {path: g * as_dtype(scale, g) for path, g in over.items()}


def _scale(max_norm: Rate, norm: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """Returns the factor that turns `g / unit`, whose norm is `norm`, into the clipped gradient g."""
    return tf.where(norm <= max_norm / unit, unit, max_norm / norm)


def _least(max_norm: float) -> float:
    """Returns the smallest norm that is measured exactly; zero unless `max_norm` is so small that squares underflow."""
    return LEAST if isinstance(max_norm, tf.Tensor) or max_norm < 1e-12 else 0.0


def unit_axes(x: tf.Tensor) -> list[int]:
    """Returns the axes over which to sum one output's weights: all except the last, or a vector's only axis."""
    return list(range(max(1, len(x.shape) - 1))) if len(x.shape) else []


def unit_norms(x: tf.Tensor) -> tf.Tensor:
    """Returns one norm for each index of the last axis (an output); one norm for a vector or scalar."""
    return tf.sqrt(tf.reduce_sum(tf.square(x), unit_axes(x), keepdims=True))


@gin.configurable
@schedulable
def adaptive_clip(clipping: float = 0.01, *, epsilon: float = 1e-3) -> Transform:
    """Follows Brock et al. (2021), "High-performance large-scale image recognition without normalization" (AGC).

    The norm of each output's gradient is at most `clipping` times the norm of the output's weights.
    """
    check_positive(clipping=clipping, epsilon=epsilon)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        found = measured(list(gradients.values()), unit_norms, unit_axes, least=0.0)
        clipped = {}
        for (path, g), (over, norm, unit) in zip(gradients.items(), found, strict=True):
            limit = clipping * tf.maximum(unit_norms(params[path]), epsilon)
            clipped[path] = tf.where(norm < limit / unit, g, over * (limit / tf.maximum(norm, 1e-6)))
        return clipped

    return stateless("adaptive_clip", rule)
