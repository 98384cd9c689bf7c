"""Adam and AdamW."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_rate
from core.optimizers.kernels import by_dtype, kernel_beta, kernel_scalar, kernels_keep
from core.optimizers.moments import averages, check_adam, squares, zeros
from core.optimizers.paths import matching
from core.optimizers.rates import as_dtype, rate_at, updates_after, weight_seen
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

    The decay of an update is the learning rate times `weight_decay`, as in PyTorch and Optax (in the paper, the
    schedule's factor times it). Parameters whose path a pattern of `no_decay`
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
        correction = tf.sqrt(weight_seen(beta_2, t))
        minus_alpha, epsilon_hat = -rate * correction / weight_seen(beta_1, t), epsilon * correction
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
        decay = rate * rate_at(weight_decay, step)
        for path in decaying(params):
            params[path].assign_sub(kernel_scalar(decay, params[path].dtype) * params[path])
        for dtype, variables in by_dtype(params):
            # The kernel's own correction is a difference of float32, so it is told that none is left to make.
            correction = tf.sqrt(weight_seen(kernel_beta(beta_2, dtype), t))
            alpha = rate * correction / weight_seen(kernel_beta(beta_1, dtype), t)
            scalars = {
                "beta1_power": kernel_scalar(0.0, dtype),
                "beta2_power": kernel_scalar(0.0, dtype),
                "lr": kernel_scalar(alpha, dtype),
                "beta1": kernel_scalar(beta_1, dtype),
                "beta2": kernel_scalar(beta_2, dtype),
                "epsilon": kernel_scalar(epsilon * correction, dtype),
            }
            for path, variable in variables.items():
                m, v = slots["m"][path].handle, slots["v"][path].handle
                tf.raw_ops.ResourceApplyAdam(var=variable.handle, m=m, v=v, grad=gradients[path], **scalars)

    kernel = fused if kernels_keep(beta_1, beta_2, to=2e-5) else None
    return stateful(name, init, update, kernel, learning_rate=learning_rate)
