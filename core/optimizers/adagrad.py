"""Rules that divide by a running size of the gradient: Adagrad, Adadelta and RMSProp."""

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_not_negative, check_positive, check_rate
from core.optimizers.kernels import by_dtype, kernel_scalar, kernels_keep
from core.optimizers.moments import averages, squares, zeros
from core.optimizers.rates import as_dtype, rate_at
from core.optimizers.transform import Schedule, Slots, State, Tensors, Transform, Variables, stateful


@gin.configurable
def adagrad(learning_rate: float | Schedule, *, initial_sum: float = 0.1, epsilon: float = 1e-7) -> Transform:
    """Follows Duchi et al. (2011), "Adaptive subgradient methods for online learning and stochastic optimization".

    The sum of squares starts at `initial_sum + epsilon`, which is the same as adding epsilon under each root. (PyTorch
    starts at zero, and adds epsilon to the root.)
    """
    check_rate(learning_rate=learning_rate)
    check_not_negative(initial_sum=initial_sum)
    check_positive(epsilon=epsilon)

    def init(params: Tensors) -> State:
        return {"sum": {path: tf.fill(p.shape, tf.cast(initial_sum + epsilon, p.dtype)) for path, p in params.items()}}

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        minus_rate = -rate_at(learning_rate, step)
        sums = {path: state["sum"][path] + tf.square(g) for path, g in gradients.items()}
        updates = {path: as_dtype(minus_rate, g) * g * tf.math.rsqrt(sums[path]) for path, g in gradients.items()}
        return updates, {"sum": sums}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate = rate_at(learning_rate, step)
        for dtype, variables in by_dtype(params):
            lr = kernel_scalar(rate, dtype)
            for path, variable in variables.items():
                accum = slots["sum"][path].handle
                tf.raw_ops.ResourceApplyAdagrad(var=variable.handle, accum=accum, lr=lr, grad=gradients[path])

    return stateful("adagrad", init, update, fused, learning_rate=learning_rate)


@gin.configurable
def adadelta(learning_rate: float | Schedule = 1.0, *, rho: float = 0.9, epsilon: float = 1e-6) -> Transform:
    """Follows Zeiler (2012), "ADADELTA: an adaptive learning rate method". The paper has no learning rate: it is 1."""
    check_rate(learning_rate=learning_rate)
    check_fraction(rho=rho)
    check_positive(epsilon=epsilon)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        minus_rate = -rate_at(learning_rate, step)
        g2 = averages(state["squared_gradient"], squares(gradients), rho)
        deltas = {
            path: tf.sqrt(state["squared_delta"][path] + epsilon) * tf.math.rsqrt(g2[path] + epsilon) * g
            for path, g in gradients.items()
        }
        x2 = averages(state["squared_delta"], squares(deltas), rho)
        updates = {path: as_dtype(minus_rate, delta) * delta for path, delta in deltas.items()}
        return updates, {"squared_gradient": g2, "squared_delta": x2}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate = rate_at(learning_rate, step)
        for dtype, variables in by_dtype(params):
            scalars = {
                "lr": kernel_scalar(rate, dtype),
                "rho": kernel_scalar(rho, dtype),
                "epsilon": kernel_scalar(epsilon, dtype),
            }
            for path, variable in variables.items():
                g2, x2 = slots["squared_gradient"][path].handle, slots["squared_delta"][path].handle
                tf.raw_ops.ResourceApplyAdadelta(
                    var=variable.handle, accum=g2, accum_update=x2, grad=gradients[path], **scalars
                )

    init, kernel = zeros("squared_gradient", "squared_delta"), fused if kernels_keep(rho, to=2e-6) else None
    return stateful("adadelta", init, update, kernel, learning_rate=learning_rate)


@gin.configurable
def rmsprop(
    learning_rate: float | Schedule,
    *,
    rho: float = 0.9,
    momentum: float = 0.0,
    centred: bool = False,
    epsilon: float = 1e-8,
) -> Transform:
    """Follows Tieleman and Hinton (2012), "Lecture 6.5: RMSProp"; centred, Graves (2013).

    `epsilon` is added under the root, as in Graves, TensorFlow and Optax (PyTorch adds it to the root). The rate is
    inside the momentum, as in TensorFlow and Optax: under a schedule, what is on its way keeps the rate that it began
    with (PyTorch multiplies all of it by the newest). Nothing is corrected for the average's start at zero.
    """
    check_rate(learning_rate=learning_rate)
    check_fraction(rho=rho, momentum=momentum)
    check_positive(epsilon=epsilon)
    slots_used = ("square", "mean", "velocity") if centred else ("square", "velocity")

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        rate = rate_at(learning_rate, step)
        square = averages(state["square"], squares(gradients), rho)
        new: dict[str, Tensors] = {"square": square}
        variance = square
        if centred:
            new["mean"] = averages(state["mean"], gradients, rho)
            variance = {path: square[path] - tf.square(mean) for path, mean in new["mean"].items()}
        new["velocity"] = {
            path: momentum * state["velocity"][path] + as_dtype(rate, g) * g * tf.math.rsqrt(variance[path] + epsilon)
            for path, g in gradients.items()
        }
        return {path: -velocity for path, velocity in new["velocity"].items()}, new

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate = rate_at(learning_rate, step)
        for dtype, variables in by_dtype(params):
            scalars = {
                "lr": kernel_scalar(rate, dtype),
                "rho": kernel_scalar(rho, dtype),
                "momentum": kernel_scalar(momentum, dtype),
                "epsilon": kernel_scalar(epsilon, dtype),
            }
            for path, variable in variables.items():
                state = {"ms": slots["square"][path].handle, "mom": slots["velocity"][path].handle}
                if centred:
                    mean = slots["mean"][path].handle
                    tf.raw_ops.ResourceApplyCenteredRMSProp(
                        var=variable.handle, mg=mean, grad=gradients[path], **state, **scalars
                    )
                else:
                    tf.raw_ops.ResourceApplyRMSProp(var=variable.handle, grad=gradients[path], **state, **scalars)

    kernel = fused if kernels_keep(rho, to=2e-6) else None
    return stateful("rmsprop", zeros(*slots_used), update, kernel, learning_rate=learning_rate)
