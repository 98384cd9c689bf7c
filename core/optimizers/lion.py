"""Lion."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, zeros
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def lion(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    no_decay: Sequence[str] = (),
    slots: str = "float32",
) -> Transform:
    """Follows Chen et al. (2023), "Symbolic discovery of optimization algorithms": the sign of an average.

    The update depends on the parameters.
    """
    check_rate(weight_decay=weight_decay)
    check_fraction(beta_1=beta_1, beta_2=beta_2)
    decay = Decay(weight_decay, no_decay)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        signs = {path: tf.sign(c) for path, c in averages(state["m"], gradients, beta_1).items()}
        updates = scale_by_rate(decay.add(signs, params, step), rate)
        return updates, {"m": averages(state["m"], gradients, beta_2)}

    return rule("lion", zeros("m"), scale, learning_rate, decay=decay, slots=slots)
