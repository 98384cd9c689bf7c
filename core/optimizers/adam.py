"""Adam and AdamW."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_rate
from core.optimizers.decay import Decay
from core.optimizers.kernels import Kernel, kernel_beta, kernels_keep
from core.optimizers.moments import adam_moments, adam_scalars, check_adam, scale_by_adam, zeros
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def adam(
    learning_rate: float | Schedule,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    slots: str = "float32",
) -> Transform:
    """Follows Kingma and Ba (2015), "Adam: a method for stochastic optimization"."""
    return _adam("adam", learning_rate, beta_1, beta_2, epsilon, Decay(0.0), slots)


@gin.configurable
@schedulable
def adamw(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 1e-2,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    no_decay: Sequence[str] = (),
    slots: str = "float32",
) -> Transform:
    """Follows Loshchilov and Hutter (2019), "Decoupled weight decay regularization".

    Each update subtracts learning rate times `weight_decay` times the parameter, as in PyTorch and Optax. (The paper
    omits the base learning rate.) Parameters whose path matches a pattern of `no_decay` don't decay.
    """
    check_rate(weight_decay=weight_decay)
    return _adam("adamw", learning_rate, beta_1, beta_2, epsilon, Decay(weight_decay, no_decay), slots)


def _adam(
    name: str, learning_rate: float | Schedule, beta_1: float, beta_2: float, epsilon: float, decay: Decay, slots: str
) -> Transform:
    check_adam(beta_1, beta_2, epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        moments = adam_moments(state, gradients, beta_1, beta_2)
        updates = scale_by_adam(moments, step, beta_1, beta_2, epsilon, -rate)
        return decay.add(updates, params, step, factor=-rate), moments

    def scalars(rate: Rate, t: tf.Tensor, dtype: tf.DType) -> dict[str, Rate]:
        betas = kernel_beta(beta_1, dtype), kernel_beta(beta_2, dtype)
        alpha, epsilon_hat = adam_scalars(t, *betas, epsilon, rate)
        # The kernel would compute the correction as a difference in float32; zero powers switch that off.
        none = {"beta1_power": 0.0, "beta2_power": 0.0}
        return none | {"lr": alpha, "beta1": beta_1, "beta2": beta_2, "epsilon": epsilon_hat}

    kernel = Kernel(tf.raw_ops.ResourceApplyAdam, {"m": "m", "v": "v"}, scalars)
    exact = kernels_keep(beta_1, beta_2, to=2e-5)
    return rule(
        name,
        zeros("m", "v"),
        scale,
        learning_rate,
        decay=decay,
        kernel=kernel if exact else None,
        slots=slots,
        squares=("v",),
    )
