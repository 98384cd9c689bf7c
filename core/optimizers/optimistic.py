"""Optimistic gradients, for games such as GANs."""

import gin
import tensorflow as tf

from core.arguments import check_not_negative
from core.optimizers.moments import zeros
from core.optimizers.rates import as_dtype
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import State, Tensors, Transform, stateful


@gin.configurable
@schedulable
def optimistic(beta: float = 1.0) -> Transform:
    """Follows Daskalakis et al. (2018), "Training GANs with optimism".

    Expects the next update to change like the last one. Returns u + β (u - u'), where u' is the previous input; in the
    first update, u. `chain(adam(1e-3), optimistic())` is the paper's optimistic Adam, and
    `chain(sgd(0.1), optimistic())` optimistic gradient descent.
    """
    check_not_negative(beta=beta)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        factor = beta * tf.cast(step > 0, tf.float32)
        ahead = {path: u + as_dtype(factor, u) * (u - state["previous"][path]) for path, u in gradients.items()}
        return ahead, {"previous": dict(gradients)}

    return stateful("optimistic", zeros("previous"), update, linear=True)
