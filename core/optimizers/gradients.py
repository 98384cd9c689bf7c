"""Changes of gradients before the rule sees them: decay, noise, centring. (Clipping is in `clipping.py`.)"""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_not_negative, check_rate
from core.optimizers.decay import Decay
from core.optimizers.rates import updates_after
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Schedule, State, Tensors, Transform, stateful, stateless
from core.random import Rng


@gin.configurable
def weight_decay(rate: float | Schedule, *, only: Sequence[str] = ("*",), exclude: Sequence[str] = ()) -> Transform:
    """Adds `rate` times the parameter to its gradient: the L2 penalty of Krogh and Hertz (1992).

    Only parameters that match a pattern of `only` and none of `exclude` decay. Put this transform before the rule. (For
    AdamW's decoupled decay, use the argument `weight_decay` of a rule.)
    """
    check_rate(rate=rate)

    decay = Decay(rate, exclude, "exclude", only)

    def init(params: Tensors) -> State:
        decay.paths(params)
        return {}

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        return decay.add(gradients, params, step), {}

    return stateful("weight_decay", init, update)


@gin.configurable
@schedulable
def gradient_noise(eta: float = 0.01, *, gamma: float = 0.55, seed: int = 0) -> Transform:
    """Follows Neelakantan et al. (2015), "Adding gradient noise improves learning for very deep networks".

    Adds normal noise of variance η / t^γ at update t, determined by `seed`, step and parameter path. Reads the step.
    """
    check_not_negative(eta=eta, gamma=gamma)

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        rng = Rng.from_seed(seed).fold("gradient_noise").fold(step)
        deviation = tf.sqrt(eta * tf.pow(updates_after(step), -gamma))
        return {path: g + tf.cast(deviation * rng.fold(path).normal(g.shape), g.dtype) for path, g in gradients.items()}

    return stateless("gradient_noise", rule)


@gin.configurable
def centralise() -> Transform:
    """Follows Yong et al. (2020), "Gradient centralization": the gradient of each output's weights has mean zero.

    Outputs are indices of a parameter's last axis, as in the kernels of `core.layers` (in Optax, of the first axis).
    """

    def rule(gradients: Tensors, params: Tensors, step: tf.Tensor) -> Tensors:
        return {
            path: g - tf.reduce_mean(g, list(range(len(g.shape) - 1)), keepdims=True) if len(g.shape) > 1 else g
            for path, g in gradients.items()
        }

    return stateless("centralise", rule)
