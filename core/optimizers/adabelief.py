"""AdaBelief."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, check_adam, scale_by_adam, zeros
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def adabelief(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-16,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Zhuang et al. (2020), "AdaBelief optimizer: adapting stepsizes by the belief in observed gradients".

    Adam's second moment becomes s ← β2 s + (1 - β2) (g - m)² + ε, where m is the new first moment.
    """
    check_rate(weight_decay=weight_decay)
    check_adam(beta_1, beta_2, epsilon)
    decay = Decay(weight_decay, no_decay)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        m = averages(state["m"], gradients, beta_1)
        errors = {path: tf.square(g - m[path]) for path, g in gradients.items()}
        s = {path: x + epsilon for path, x in averages(state["s"], errors, beta_2).items()}
        updates = scale_by_adam({"m": m, "v": s}, step, beta_1, beta_2, epsilon, -rate)
        return decay.add(updates, params, step, factor=-rate), {"m": m, "s": s}

    return rule("adabelief", zeros("m", "s"), scale, learning_rate, decay=decay)
