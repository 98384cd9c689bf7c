"""Adam and AdamW."""

import math
from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_rate
from core.optimizers.kernels import by_dtype, kernel_scalar, kernel_shortfall
from core.optimizers.moments import averages, check_adam, squares, zeros
from core.optimizers.paths import matching
from core.optimizers.rates import as_dtype, rate_at, updates_after
from core.optimizers.transform import Schedule, Slots, State, Tensors, Transform, Variables, stateful


@gin.configurable
def adam(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Kingma and Ba (2015), "Adam: a method for stochastic optimization"."""
    return _adam("adam", learning_rate, beta_1, beta_2, epsilon, 0.0, ())


@gin.configurable
def adamw(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 1e-2,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Loshchilov and Hutter (2019), "Decoupled weight decay regularization".

    The decay of an update is the learning rate times `weight_decay`. Parameters whose path a pattern of `no_decay`
    matches don't decay.
    """
    check_rate(weight_decay=weight_decay)
    return _adam("adamw", learning_rate, beta_1, beta_2, epsilon, weight_decay, no_decay)


def _adam(
    name: str,
    learning_rate: float | Schedule,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float | Schedule,
    no_decay: Sequence[str],
) -> Transform:
    check_adam(learning_rate, beta_1, beta_2, epsilon)

    def decaying(params: Tensors | Variables) -> list[str]:
        if not callable(weight_decay) and weight_decay == 0.0:
            return []
        kept = matching(no_decay, params, argument="no_decay")
        return [path for path in params if path not in kept]

    def init(params: Tensors) -> State:
        matching(no_decay, params, argument="no_decay")
        return zeros("m", "v")(params)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        m = averages(state["m"], gradients, beta_1)
        v = averages(state["v"], squares(gradients), beta_2)
        # The paper's efficient order: both bias corrections go into scalars, which are computed once for all tensors.
        rate, t = rate_at(learning_rate, step), updates_after(step)
        correction = tf.sqrt(1.0 - tf.pow(beta_2, t))
        minus_alpha, epsilon_hat = -rate * correction / (1.0 - tf.pow(beta_1, t)), epsilon * correction
        updates = {
            path: as_dtype(minus_alpha, mean) * mean / (tf.sqrt(v[path]) + as_dtype(epsilon_hat, mean))
            for path, mean in m.items()
        }
        minus_decay = -rate * rate_at(weight_decay, step)
        for path in decaying(params):
            updates[path] += as_dtype(minus_decay, params[path]) * params[path]
        return updates, {"m": m, "v": v}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate, t = rate_at(learning_rate, step), updates_after(step)
        beta_1_power, beta_2_power = tf.pow(beta_1, t), tf.pow(beta_2, t)
        # The kernel corrects the bias of m and v, but adds an epsilon that isn't corrected with them.
        epsilon_hat = epsilon * tf.sqrt(1.0 - beta_2_power)
        decay = rate * rate_at(weight_decay, step)
        for path in decaying(params):
            params[path].assign_sub(kernel_scalar(decay, params[path].dtype) * params[path])
        for dtype, variables in by_dtype(params):
            short_1, short_2 = kernel_shortfall(beta_1, dtype), math.sqrt(kernel_shortfall(beta_2, dtype))
            scalars = {
                "beta1_power": kernel_scalar(beta_1_power, dtype),
                "beta2_power": kernel_scalar(beta_2_power, dtype),
                "lr": kernel_scalar(rate * (short_2 / short_1), dtype),
                "beta1": kernel_scalar(beta_1, dtype),
                "beta2": kernel_scalar(beta_2, dtype),
                "epsilon": kernel_scalar(epsilon_hat * short_2, dtype),
            }
            for path, variable in variables.items():
                m, v = slots["m"][path].handle, slots["v"][path].handle
                tf.raw_ops.ResourceApplyAdam(var=variable.handle, m=m, v=v, grad=gradients[path], **scalars)

    return stateful(name, init, update, fused)
