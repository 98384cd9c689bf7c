"""Rules that change one thing in Adam: AMSGrad, Nadam, RAdam and AdaMax."""

import math

import gin
import tensorflow as tf

from core.arguments import is_scheduled
from core.choice import one_of
from core.optimizers.kernels import Kernel, kernel_beta, kernels_keep
from core.optimizers.moments import adam_moments, averages, check_adam, look_ahead, zeros
from core.optimizers.rates import as_dtype, newest_share, updates_after, weight_seen
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def amsgrad(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Reddi et al. (2018), "On the convergence of Adam and beyond": the divisor never decreases.

    As in Optax, the divisor is the largest bias-corrected second moment so far. The paper has no bias correction, and
    PyTorch corrects the largest uncorrected moment. XLA can't compile TensorFlow's kernel: in code compiled with XLA,
    call `apply(..., fused=False)`.
    """
    check_adam(beta_1, beta_2, epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        t = updates_after(step)
        m = averages(state["m"], gradients, beta_1)
        share = newest_share(t, beta_2)
        v = {path: v + as_dtype(share, v) * (tf.square(gradients[path]) - v) for path, v in state["v"].items()}
        v_max = {path: tf.maximum(state["v_max"][path], new) for path, new in v.items()}
        minus_alpha = -rate / weight_seen(beta_1, t)
        updates = {
            path: as_dtype(minus_alpha, mean) * mean / (tf.sqrt(v_max[path]) + epsilon) for path, mean in m.items()
        }
        return updates, {"m": m, "v": v, "v_max": v_max}

    def scalars(rate: Rate, t: tf.Tensor, dtype: tf.DType) -> dict[str, Rate]:
        lr, share = rate / weight_seen(kernel_beta(beta_1, dtype), t), newest_share(t, beta_2)
        none = {"beta1_power": 0.0, "beta2_power": 0.0}  # the correction is in `lr` and `beta2`
        return none | {"lr": lr, "beta1": beta_1, "beta2": 1.0 - share, "epsilon": epsilon}

    kernel = Kernel(tf.raw_ops.ResourceApplyAdamWithAmsgrad, {"m": "m", "v": "v", "vhat": "v_max"}, scalars)
    exact = kernels_keep(beta_1, beta_2, to=2e-5)
    return rule("amsgrad", zeros("m", "v", "v_max"), scale, learning_rate, kernel=kernel if exact else None)


@gin.configurable
@schedulable
def nadam(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Dozat (2016), "Incorporating Nesterov momentum into Adam": the first moment looks one step ahead.

    As in Optax, the paper's factor β2 on the second moment is omitted, and β1 is the same at every update. The paper
    and PyTorch warm β1 up; the paper's value at update t is β1 (1 - 0.5 · 0.96^(t/250)).
    """
    check_adam(beta_1, beta_2, epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        moments = adam_moments(state, gradients, beta_1, beta_2)
        correction = tf.sqrt(weight_seen(beta_2, updates_after(step)))
        ahead = look_ahead(moments["m"], gradients, step, beta_1, -rate * correction)
        epsilon_hat, v = epsilon * correction, moments["v"]
        return {path: x / (tf.sqrt(v[path]) + as_dtype(epsilon_hat, x)) for path, x in ahead.items()}, moments

    return rule("nadam", zeros("m", "v"), scale, learning_rate)


def rectification(t: tf.Tensor, beta_2: Rate) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(r, defined)` for RAdam's update `t`: the paper's rectification r, and whether it is defined."""
    beta_2 = as_dtype(beta_2, tf.zeros([], tf.float64))
    limit = 2.0 / (1.0 - beta_2) - 1.0
    # In float64: for β2 = 0.99999, a length of five is the difference 199,999 - 199,994.
    wide = tf.cast(t, tf.float64)
    power = wide * (tf.math.log(beta_2) if isinstance(beta_2, tf.Tensor) else math.log(beta_2))
    length = limit + 2.0 * wide * tf.exp(power) / tf.math.expm1(power)
    usable = length >= 5.0
    long = tf.cast(tf.maximum(length, tf.constant(5.0, tf.float64)), t.dtype)
    limit = as_dtype(limit, long)
    ratio = (long - 4.0) * (long - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * long)
    return tf.sqrt(ratio), usable


@gin.configurable
@schedulable
def radam(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Liu et al. (2020), "On the variance of the adaptive learning rate and beyond".

    The first updates use momentum alone; as in Optax, until the paper's ρ reaches 5 (in the paper, until it exceeds 4).
    """
    check_adam(beta_1, beta_2, epsilon)
    if not is_scheduled(beta_2) and beta_2 < 0.8:
        raise ValueError(f"`beta_2` is {beta_2!r}; below 0.8 the average is too short for the rectification.")

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        t = updates_after(step)
        moments = adam_moments(state, gradients, beta_1, beta_2)
        r, usable = rectification(t, beta_2)
        minus_alpha = -rate / weight_seen(beta_1, t)
        correction = tf.sqrt(weight_seen(beta_2, t))
        numerator, epsilon_hat = r * correction, epsilon * correction
        updates = {}
        for path, mean in moments["m"].items():
            adaptive = as_dtype(numerator, mean) / (tf.sqrt(moments["v"][path]) + as_dtype(epsilon_hat, mean))
            updates[path] = as_dtype(minus_alpha, mean) * mean * one_of(usable, adaptive, tf.ones_like(adaptive))
        return updates, moments

    return rule("radam", zeros("m", "v"), scale, learning_rate)


@gin.configurable
@schedulable
def adamax(
    learning_rate: float | Schedule, *, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8
) -> Transform:
    """Follows Kingma and Ba (2015), "Adam: a method for stochastic optimization", section 7.1: with the infinity norm.

    `epsilon` is added to the norm; Optax adds `epsilon` to the gradient inside the norm.
    """
    check_adam(beta_1, beta_2, epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        m = averages(state["m"], gradients, beta_1)
        u = {path: tf.maximum(old - (1.0 - beta_2) * old, tf.abs(gradients[path])) for path, old in state["u"].items()}
        minus_alpha = -rate / weight_seen(beta_1, updates_after(step))
        updates = {path: as_dtype(minus_alpha, mean) * mean / (u[path] + epsilon) for path, mean in m.items()}
        return updates, {"m": m, "u": u}

    def scalars(rate: Rate, t: tf.Tensor, dtype: tf.DType) -> dict[str, Rate]:
        lr = rate / weight_seen(kernel_beta(beta_1, dtype), t)
        return {"beta1_power": 0.0, "lr": lr, "beta1": beta_1, "beta2": beta_2, "epsilon": epsilon}

    kernel = Kernel(tf.raw_ops.ResourceApplyAdaMax, {"m": "m", "v": "u"}, scalars)
    exact = kernels_keep(beta_1, beta_2, to=2e-5)
    return rule("adamax", zeros("m", "u"), scale, learning_rate, kernel=kernel if exact else None)
