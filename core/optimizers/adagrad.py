"""Optimizers that divide by a running size of the gradient: Adagrad, Adadelta and RMSProp."""

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_not_negative, check_positive
from core.optimizers.kernels import Kernel, kernels_keep
from core.optimizers.moments import averages, decaying_sums, squares, zeros
from core.optimizers.rates import as_dtype
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def adagrad(learning_rate: float | Schedule, *, initial_sum: float = 0.1, epsilon: float = 1e-7) -> Transform:
    """Follows Duchi et al. (2011), "Adaptive subgradient methods for online learning and stochastic optimization".

    The sum of squares starts at `initial_sum + epsilon`, so `epsilon` is inside each root. (PyTorch's sum starts at
    zero, and `epsilon` is added outside the root.)
    """
    check_not_negative(initial_sum=initial_sum)
    check_positive(epsilon=epsilon)

    def init(params: Tensors) -> State:
        return {"sum": {path: tf.fill(p.shape, tf.cast(initial_sum + epsilon, p.dtype)) for path, p in params.items()}}

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        sums = {path: state["sum"][path] + tf.square(g) for path, g in gradients.items()}
        updates = {path: as_dtype(-rate, g) * g * tf.math.rsqrt(sums[path]) for path, g in gradients.items()}
        return updates, {"sum": sums}

    kernel = Kernel(tf.raw_ops.ResourceApplyAdagrad, {"accum": "sum"}, lambda rate, t, dtype: {"lr": rate})
    return rule("adagrad", init, scale, learning_rate, kernel=kernel)


@gin.configurable
@schedulable
def adadelta(learning_rate: float | Schedule = 1.0, *, rho: float = 0.9, epsilon: float = 1e-6) -> Transform:
    """Follows Zeiler (2012), "ADADELTA: an adaptive learning rate method". The paper's learning rate is always 1."""
    check_fraction(rho=rho)
    check_positive(epsilon=epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        g2 = averages(state["squared_gradient"], squares(gradients), rho)
        deltas = {
            path: tf.sqrt(state["squared_delta"][path] + epsilon) * tf.math.rsqrt(g2[path] + epsilon) * g
            for path, g in gradients.items()
        }
        x2 = averages(state["squared_delta"], squares(deltas), rho)
        return scale_by_rate(deltas, rate), {"squared_gradient": g2, "squared_delta": x2}

    kernel = Kernel(
        tf.raw_ops.ResourceApplyAdadelta,
        {"accum": "squared_gradient", "accum_update": "squared_delta"},
        lambda rate, t, dtype: {"lr": rate, "rho": rho, "epsilon": epsilon},
    )
    exact, slots = kernels_keep(rho, to=2e-6), kernel.slots.values()
    return rule("adadelta", zeros(*slots), scale, learning_rate, kernel=kernel if exact else None)


@gin.configurable
@schedulable
def rmsprop(
    learning_rate: float | Schedule,
    *,
    rho: float = 0.9,
    momentum: float = 0.0,
    centred: bool = False,
    epsilon: float = 1e-8,
) -> Transform:
    """Follows Tieleman and Hinton (2012), "Lecture 6.5: RMSProp"; with `centred`, Graves (2013).

    `epsilon` is added inside the root, as in Graves, TensorFlow and Optax; PyTorch adds it outside. As in TensorFlow
    and Optax, each gradient enters the momentum with its own update's rate. (In PyTorch, the newest rate multiplies
    the whole momentum.) The averages start at zero without a bias correction.
    """
    check_fraction(rho=rho, momentum=momentum)
    check_positive(epsilon=epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        square = averages(state["square"], squares(gradients), rho)
        new: dict[str, Tensors] = {"square": square}
        variance = square
        if centred:
            new["mean"] = averages(state["mean"], gradients, rho)
            variance = {path: square[path] - tf.square(mean) for path, mean in new["mean"].items()}
        ways = {path: as_dtype(rate, g) * g * tf.math.rsqrt(variance[path] + epsilon) for path, g in gradients.items()}
        _, new["velocity"] = decaying_sums(state["velocity"], ways, momentum)
        return {path: -velocity for path, velocity in new["velocity"].items()}, new

    kernel = Kernel(
        tf.raw_ops.ResourceApplyCenteredRMSProp if centred else tf.raw_ops.ResourceApplyRMSProp,
        {"ms": "square", "mom": "velocity"} | ({"mg": "mean"} if centred else {}),
        lambda rate, t, dtype: {"lr": rate, "rho": rho, "momentum": momentum, "epsilon": epsilon},
    )
    exact, slots = kernels_keep(rho, to=2e-6), kernel.slots.values()
    return rule("rmsprop", zeros(*slots), scale, learning_rate, kernel=kernel if exact else None)
