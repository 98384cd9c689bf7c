"""Lion."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_rate
from core.optimizers.moments import averages, zeros
from core.optimizers.paths import matching
from core.optimizers.rates import as_dtype, rate_at
from core.optimizers.transform import Schedule, State, Tensors, Transform, stateful


@gin.configurable
def lion(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 1e-3,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Chen et al. (2023), "Symbolic discovery of optimization algorithms": an average's sign.

    Reads parameters.
    """
    check_rate(learning_rate=learning_rate, weight_decay=weight_decay)
    check_fraction(beta_1=beta_1, beta_2=beta_2)

    def init(params: Tensors) -> State:
        matching(no_decay, params, argument="no_decay")
        return zeros("m")(params)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        minus_rate, decay = -rate_at(learning_rate, step), rate_at(weight_decay, step)
        directions = {path: tf.sign(c) for path, c in averages(state["m"], gradients, beta_1).items()}
        kept = matching(no_decay, params, argument="no_decay")
        for path, p in params.items():
            if path not in kept:
                directions[path] += as_dtype(decay, p) * p
        updates = {path: as_dtype(minus_rate, direction) * direction for path, direction in directions.items()}
        return updates, {"m": averages(state["m"], gradients, beta_2)}

    return stateful("lion", init, update, learning_rate=learning_rate)
