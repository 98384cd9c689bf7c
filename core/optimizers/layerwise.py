"""Optimizers for large batches, which scale each layer's rate with a trust ratio: LARS and LAMB."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import adam_moments, check_adam, decaying_sums, scale_by_adam, zeros
from core.optimizers.norms import measured
from core.optimizers.rates import as_dtype
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


def trust_ratios(
    params: Tensors, directions: Tensors, coefficient: float = 1.0
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Returns `{path: (ratio, direction)}`, whose product is the update η ‖θ‖ / ‖u‖ · u of parameter θ.

    η is `coefficient`, and u is `directions[path]`. If a norm is zero, the product is u, so that zero parameters move.
    If the norm of u might overflow, the returned direction is u divided by a constant.
    """
    if not directions:
        return {}
    found = measured([x for path, direction in directions.items() for x in (params[path], direction)])
    ratios = {}
    for path, (_, size, size_unit), (over, norm, unit) in zip(directions, found[::2], found[1::2], strict=True):
        ratio = coefficient * tf.math.divide_no_nan(size_unit * size, norm)
        ratios[path] = tf.where((size > 0.0) & (norm > 0.0), ratio, unit), over
    return ratios


@gin.configurable
@schedulable
def lamb(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows You et al. (2020), "Large batch optimization for deep learning: training BERT in 76 minutes".

    The norm of each parameter scales its update. The paper's φ, which may bound this norm, is the identity.
    """
    check_adam(beta_1, beta_2, epsilon)
    check_rate(weight_decay=weight_decay)

    decay = Decay(weight_decay, no_decay)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        moments = adam_moments(state, gradients, beta_1, beta_2)
        directions = decay.add(scale_by_adam(moments, step, beta_1, beta_2, epsilon), params, step)
        ratios = trust_ratios(params, directions)
        return {path: as_dtype(-rate, u) * ratio * u for path, (ratio, u) in ratios.items()}, moments

    return rule("lamb", zeros("m", "v"), scale, learning_rate, decay=decay)


@gin.configurable
@schedulable
def lars(
    learning_rate: float | Schedule,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float | Schedule = 0.0,
    trust_coefficient: float = 1e-3,
    plain: Sequence[str] = (),
) -> Transform:
    """Follows You et al. (2017), "Large batch training of convolutional networks".

    The update depends on the parameters. Parameters that match a pattern of `plain` (usually biases and scales) get
    neither the ratio nor the decay.

    The ratio divides by ‖g + λθ‖ as in Optax, in the paper by ‖g‖ + λ‖θ‖. As in the paper, each gradient enters the
    momentum with its own update's rate.
    """
    check_rate(weight_decay=weight_decay)
    check_fraction(momentum=momentum)
    check_positive(trust_coefficient=trust_coefficient)

    decay = Decay(weight_decay, plain, "plain")

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        layerwise, decayed = decay.paths(params), decay.add(gradients, params, step)
        ratios = trust_ratios(params, {path: u for path, u in decayed.items() if path in layerwise}, trust_coefficient)
        directions = {**gradients, **{path: u * ratio for path, (ratio, u) in ratios.items()}}
        steps = scale_by_rate(directions, rate)
        ahead, sums = decaying_sums(state["momentum"], steps, momentum, nesterov=nesterov)
        return ahead, {"momentum": sums}

    return rule("lars", zeros("momentum"), scale, learning_rate, decay=decay)
