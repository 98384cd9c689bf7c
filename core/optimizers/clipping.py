"""Clipping of gradients, before the rule sees them."""

import gin
import tensorflow as tf

from core.arguments import check_positive
from core.optimizers.rates import as_dtype
from core.optimizers.transform import Tensors, Transform, stateless


def global_norm(tensors: Tensors) -> tf.Tensor:
    """Returns the Euclidean norm of all tensors taken as one vector; in float64 if one of them is, else in float32."""
    # Half precision would overflow in a sum of squares, and float64 when made narrower.
    wide = tf.float64 if any(x.dtype == tf.float64 for x in tensors.values()) else tf.float32
    halves = [tf.nn.l2_loss(x if x.dtype.size >= 4 else tf.cast(x, wide)) for x in tensors.values()]
    return tf.sqrt(2.0 * tf.add_n([tf.cast(x, wide) for x in halves]))


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
        return {path: g * (max_norm / tf.maximum(tf.norm(g), max_norm)) for path, g in gradients.items()}

    return stateless("clip_by_norm", rule)


@gin.configurable
def clip_by_global_norm(max_norm: float) -> Transform:
    """Follows Pascanu et al. (2013), "On the difficulty of training recurrent neural networks"."""
    check_positive(max_norm=max_norm)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        # Exactly one where nothing is to be clipped, so that such gradients keep their bits.
        scale = max_norm / tf.maximum(global_norm(gradients), max_norm)
        return {path: g * as_dtype(scale, g) for path, g in gradients.items()}

    return stateless("clip_by_global_norm", rule)


def unit_norms(x: tf.Tensor) -> tf.Tensor:
    """Returns the norm of the weights of each output, the last axis; of a vector or scalar, its one norm."""
    axes = list(range(max(1, len(x.shape) - 1))) if len(x.shape) else []
    return tf.sqrt(tf.reduce_sum(tf.square(x), axes, keepdims=True))


@gin.configurable
def adaptive_clip(clipping: float = 0.01, *, epsilon: float = 1e-3) -> Transform:
    """Follows Brock et al. (2021), "High-performance large-scale image recognition without normalization" (AGC).

    The gradient of each output's weights is at most `clipping` times as long as they are. Reads parameters.
    """
    check_positive(clipping=clipping, epsilon=epsilon)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        clipped = {}
        for path, g in gradients.items():
            norm, limit = unit_norms(g), clipping * tf.maximum(unit_norms(params[path]), epsilon)
            clipped[path] = tf.where(norm < limit, g, g * (limit / tf.maximum(norm, 1e-6)))
        return clipped

    return stateless("adaptive_clip", rule)
