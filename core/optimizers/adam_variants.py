"""Rules that change one thing in Adam: AMSGrad, Nadam, RAdam and AdaMax."""

import math

import gin
import tensorflow as tf

from core.choice import one_of
from core.optimizers.kernels import by_dtype, kernel_beta, kernel_scalar, kernels_keep
from core.optimizers.moments import averages, check_adam, squares, zeros
from core.optimizers.rates import as_dtype, newest_share, rate_at, updates_after, weight_seen
from core.optimizers.transform import Schedule, Slots, State, Tensors, Transform, Variables, stateful


@gin.configurable
def amsgrad(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Reddi et al. (2018), "On the convergence of Adam and beyond": the dividing moment never decreases.

    As in Optax it is the largest *corrected* second moment so far; the paper corrects neither moment, and PyTorch
    corrects the largest. TensorFlow's kernel is one of those that XLA can't compile: code that is compiled says
    `apply(..., fused=False)`.
    """
    check_adam(learning_rate, beta_1, beta_2, epsilon)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        t = updates_after(step)
        m = averages(state["m"], gradients, beta_1)
        share = newest_share(t, beta_2)
        v = {path: v + as_dtype(share, v) * (tf.square(gradients[path]) - v) for path, v in state["v"].items()}
        v_max = {path: tf.maximum(state["v_max"][path], new) for path, new in v.items()}
        minus_alpha = -rate_at(learning_rate, step) / weight_seen(beta_1, t)
        updates = {
            path: as_dtype(minus_alpha, mean) * mean / (tf.sqrt(v_max[path]) + epsilon) for path, mean in m.items()
        }
        return updates, {"m": m, "v": v, "v_max": v_max}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate, t = rate_at(learning_rate, step), updates_after(step)
        share = newest_share(t, beta_2)
        for dtype, variables in by_dtype(params):
            scalars = {
                "beta1_power": kernel_scalar(0.0, dtype),
                "beta2_power": kernel_scalar(0.0, dtype),
                "lr": kernel_scalar(rate / weight_seen(kernel_beta(beta_1, dtype), t), dtype),
                "beta1": kernel_scalar(beta_1, dtype),
                "beta2": kernel_scalar(1.0 - share, dtype),
                "epsilon": kernel_scalar(epsilon, dtype),
            }
            for path, variable in variables.items():
                m, v, v_max = (slots[slot][path].handle for slot in ("m", "v", "v_max"))
                tf.raw_ops.ResourceApplyAdamWithAmsgrad(
                    var=variable.handle, m=m, v=v, vhat=v_max, grad=gradients[path], **scalars
                )

    kernel = fused if kernels_keep(beta_1, beta_2, to=2e-5) else None
    return stateful("amsgrad", zeros("m", "v", "v_max"), update, kernel, learning_rate=learning_rate)


@gin.configurable
def nadam(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Dozat (2016), "Incorporating Nesterov momentum into Adam": the first moment looks one step ahead.

    As in Optax, without the paper's factor β2 on the second moment, and with the same β1 at every update: the paper and
    PyTorch warm the momentum up, by β1 (1 - 0.5 · 0.96^(t/250)) in the paper.
    """
    check_adam(learning_rate, beta_1, beta_2, epsilon)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        t = updates_after(step)
        m = averages(state["m"], gradients, beta_1)
        v = averages(state["v"], squares(gradients), beta_2)
        of_mean = beta_1 / weight_seen(beta_1, t + 1.0)
        of_gradient = newest_share(t, beta_1)
        correction = tf.sqrt(weight_seen(beta_2, t))
        minus_alpha, epsilon_hat = -rate_at(learning_rate, step) * correction, epsilon * correction
        of_mean, of_gradient = minus_alpha * of_mean, minus_alpha * of_gradient
        updates = {}
        for path, g in gradients.items():
            ahead = as_dtype(of_mean, g) * m[path] + as_dtype(of_gradient, g) * g
            updates[path] = ahead / (tf.sqrt(v[path]) + as_dtype(epsilon_hat, g))
        return updates, {"m": m, "v": v}

    return stateful("nadam", zeros("m", "v"), update, learning_rate=learning_rate)


def rectification(t: tf.Tensor, beta_2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (r, whether it may be used) of RAdam's update t: the adaptive rate's variance, relative to its limit."""
    limit = 2.0 / (1.0 - beta_2) - 1.0
    # In float64: the length of five is what remains of 199,999 - 199,994 for β2 = 0.99999.
    wide = tf.cast(t, tf.float64)
    power = wide * math.log(beta_2)
    length = limit + 2.0 * wide * tf.exp(power) / tf.math.expm1(power)
    usable = length >= 5.0
    long = tf.cast(tf.maximum(length, tf.constant(5.0, tf.float64)), t.dtype)
    ratio = (long - 4.0) * (long - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * long)
    return tf.sqrt(ratio), usable


@gin.configurable
def radam(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Liu et al. (2020), "On the variance of the adaptive learning rate and beyond": momentum until v is known.

    As in Optax, the rule turns adaptive when the length of the average reaches 5 (the paper says more than 4).
    """
    check_adam(learning_rate, beta_1, beta_2, epsilon)
    if beta_2 < 0.8:
        raise ValueError(f"`beta_2` is {beta_2!r}; below 0.8 the average is too short for the rectification.")

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        t = updates_after(step)
        m = averages(state["m"], gradients, beta_1)
        v = averages(state["v"], squares(gradients), beta_2)
        r, usable = rectification(t, beta_2)
        minus_alpha = -rate_at(learning_rate, step) / weight_seen(beta_1, t)
        correction = tf.sqrt(weight_seen(beta_2, t))
        numerator, epsilon_hat = r * correction, epsilon * correction
        updates = {}
        for path, mean in m.items():
            adaptive = as_dtype(numerator, mean) / (tf.sqrt(v[path]) + as_dtype(epsilon_hat, mean))
            updates[path] = as_dtype(minus_alpha, mean) * mean * one_of(usable, adaptive, tf.ones_like(adaptive))
        return updates, {"m": m, "v": v}

    return stateful("radam", zeros("m", "v"), update, learning_rate=learning_rate)


@gin.configurable
def adamax(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Kingma and Ba (2015), "Adam: a method for stochastic optimization", section 7.1: by the norm of order ∞.

    `epsilon` is added to the norm; Optax adds it to the gradient within.
    """
    check_adam(learning_rate, beta_1, beta_2, epsilon)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        m = averages(state["m"], gradients, beta_1)
        u = {path: tf.maximum(old - (1.0 - beta_2) * old, tf.abs(gradients[path])) for path, old in state["u"].items()}
        minus_alpha = -rate_at(learning_rate, step) / weight_seen(beta_1, updates_after(step))
        updates = {path: as_dtype(minus_alpha, mean) * mean / (u[path] + epsilon) for path, mean in m.items()}
        return updates, {"m": m, "u": u}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate, t = rate_at(learning_rate, step), updates_after(step)
        for dtype, variables in by_dtype(params):
            scalars = {
                "beta1_power": kernel_scalar(0.0, dtype),
                "lr": kernel_scalar(rate / weight_seen(kernel_beta(beta_1, dtype), t), dtype),
                "beta1": kernel_scalar(beta_1, dtype),
                "beta2": kernel_scalar(beta_2, dtype),
                "epsilon": kernel_scalar(epsilon, dtype),
            }
            for path, variable in variables.items():
                m, u = slots["m"][path].handle, slots["u"][path].handle
                tf.raw_ops.ResourceApplyAdaMax(var=variable.handle, m=m, v=u, grad=gradients[path], **scalars)

    kernel = fused if kernels_keep(beta_1, beta_2, to=2e-5) else None
    return stateful("adamax", zeros("m", "u"), update, kernel, learning_rate=learning_rate)
