"""Clipping of gradients, before the rule sees them."""

import gin
import tensorflow as tf

from core.arguments import check_positive
from core.optimizers.norms import LEAST, measured, measured_together
from core.optimizers.rates import as_dtype
from core.optimizers.transform import Tensors, Transform, stateless


@gin.configurable
def clip_by_value(max_value: float) -> Transform:
    """Clips every number into [-max_value, max_value]."""
    check_positive(max_value=max_value)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        return {path: tf.clip_by_value(g, -max_value, max_value) for path, g in gradients.items()}

    return stateless("clip_by_value", rule)


@gin.configurable
def clip_by_norm(max_norm: float) -> Transform:
    """Scales each gradient by itself to a length of at most `max_norm`."""
    check_positive(max_norm=max_norm)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        found = zip(gradients, measured(list(gradients.values()), least=_least(max_norm)), strict=True)
        return {path: over * _scale(max_norm, norm, unit) for path, (over, norm, unit) in found}

    return stateless("clip_by_norm", rule)


@gin.configurable
def clip_by_global_norm(max_norm: float) -> Transform:
    """Follows Pascanu et al. (2013), "On the difficulty of training recurrent neural networks".

    What is clipped has the norm `max_norm` (in PyTorch a little less: it adds 1e-6 to the norm).
    """
    check_positive(max_norm=max_norm)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        over, norm, unit = measured_together(gradients, least=_least(max_norm))
        scale = _scale(max_norm, norm, unit)
        return {path: g * as_dtype(scale, g) for path, g in over.items()}

    return stateless("clip_by_global_norm", rule)


def _scale(max_norm: float, norm: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """Returns what to multiply by what has this norm over its unit; one where nothing is clipped, to keep the bits."""
    return tf.where(norm <= max_norm / unit, unit, max_norm / norm)


def _least(max_norm: float) -> float:
    """Returns the least norm that must be right: one whose squares are lost is below any usual limit."""
    return LEAST if max_norm < 1e-12 else 0.0


def unit_axes(x: tf.Tensor) -> list[int]:
    """Returns the axes of the weights of one output: all but the last; of a vector, its one."""
    return list(range(max(1, len(x.shape) - 1))) if len(x.shape) else []


def unit_norms(x: tf.Tensor) -> tf.Tensor:
    """Returns the norm of the weights of each output, the last axis; of a vector or scalar, its one norm."""
    return tf.sqrt(tf.reduce_sum(tf.square(x), unit_axes(x), keepdims=True))


@gin.configurable
def adaptive_clip(clipping: float = 0.01, *, epsilon: float = 1e-3) -> Transform:
    """Follows Brock et al. (2021), "High-performance large-scale image recognition without normalization" (AGC).

    The gradient of each output's weights is at most `clipping` times as long as they are. Reads parameters.
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
