"""Stochastic gradient descent, with momentum (Polyak, 1964) or Nesterov momentum (Sutskever et al., 2013)."""

import gin
import tensorflow as tf

from core.arguments import check_fraction, is_scheduled
from core.errors import shown
from core.optimizers.kernels import Kernel
from core.optimizers.moments import decaying_sums, zeros
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def sgd(
    learning_rate: float | Schedule, *, momentum: float = 0.0, nesterov: bool = False, slots: str = "float32"
) -> Transform:
    """Steps θ ← θ - α u, where u is the gradient, or with momentum the decaying sum of the gradients.

    As in PyTorch and Optax, the newest rate α multiplies the whole sum, earlier gradients included. (In Sutskever et
    al., each gradient enters the sum with its own update's rate.)
    """
    check_fraction(momentum=momentum)
    sums_up = is_scheduled(momentum) or bool(momentum)
    if nesterov and not sums_up:
        raise ValueError("`nesterov` is true, but `momentum` is 0.0; give the momentum, such as `momentum=0.9`.")
    if slots != "float32" and not sums_up:
        raise ValueError(
            f"`slots` is {shown(slots)}, but `momentum` is 0.0, and `sgd` without momentum has no slots; leave `slots` "
            "out, or give the momentum, such as `momentum=0.9`."
        )

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        if not sums_up:
            return scale_by_rate(gradients, rate), state
        ahead, sums = decaying_sums(state["momentum"], gradients, momentum, nesterov=nesterov)
        return scale_by_rate(ahead, rate), {"momentum": sums}

    def descend(*, var: tf.Tensor, grad: tf.Tensor, lr: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=lr, delta=grad)

    def roll(**arguments: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyMomentum(use_nesterov=nesterov, **arguments)

    if sums_up:
        kernel = Kernel(roll, {"accum": "momentum"}, lambda rate, t, dtype: {"lr": rate, "momentum": momentum})
    else:
        kernel = Kernel(descend, {}, lambda rate, t, dtype: {"lr": rate})
    init = zeros("momentum") if sums_up else zeros()
    return rule("sgd", init, scale, learning_rate, kernel=kernel, linear=True, slots=slots)
