"""MARS: reduces the variance of gradients before any rule."""

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_rate
from core.optimizers.clipping import clip_by_norm
from core.optimizers.moments import changes, zeros
from core.optimizers.rates import as_dtype, rate_at
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Schedule, State, Tensors, Transform, stateful


@gin.configurable
@schedulable
def mars(*, gamma: float | Schedule = 0.025, beta_1: float = 0.95, max_norm: float = 1.0) -> Transform:
    """Follows Yuan et al. (2024), "MARS: unleashing the power of variance reduction for training large models".

    The gradient g becomes g + γ β1 / (1 - β1) · (g - last g), scaled to a norm of at most `max_norm` per parameter. Put
    this transform before a rule with the same β1: `chain(mars(), adamw(1e-3, beta_1=0.95, beta_2=0.99))`.

    This is the paper's approximate form: the last gradient is of the last batch. The correction is zero in the first
    update. The authors' code leaves vectors to AdamW; `groups` does the same.
    """
    check_rate(gamma=gamma)
    check_fraction(beta_1=beta_1)
    clip = clip_by_norm(max_norm)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        factor = rate_at(gamma, step) * (beta_1 / (1.0 - beta_1))
        d = changes(gradients, state["gradient"], step)
        corrected = {path: g + as_dtype(factor, g) * d[path] for path, g in gradients.items()}
        clipped, _ = clip.update(corrected, {}, params, step=step)
        return clipped, {"gradient": dict(gradients)}

    return stateful("mars", zeros("gradient"), update)
