"""Stochastic gradient descent, with momentum (Polyak, 1964) and Nesterov's form of it (Sutskever et al., 2013)."""

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_rate
from core.optimizers.kernels import by_dtype, kernel_scalar
from core.optimizers.rates import as_dtype, rate_at
from core.optimizers.transform import Schedule, Slots, State, Tensors, Transform, Variables, stateful


@gin.configurable
def sgd(learning_rate: float | Schedule, *, momentum: float = 0.0, nesterov: bool = False) -> Transform:
    """Steps θ ← θ - α u, where u is the gradient, or with momentum the decaying sum of the gradients.

    The rate multiplies the sum, as in PyTorch and Optax: a schedule also changes what is on its way. (In Sutskever et
    al. the rate is inside.)
    """
    check_rate(learning_rate=learning_rate)
    check_fraction(momentum=momentum)
    if nesterov and not momentum:
        raise ValueError("`nesterov` is true, but `momentum` is 0.0; give the momentum, such as `momentum=0.9`.")

    def init(params: Tensors) -> State:
        return {"momentum": {path: tf.zeros_like(p) for path, p in params.items()}} if momentum else {}

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        minus_rate = -rate_at(learning_rate, step)
        if not momentum:
            return {path: as_dtype(minus_rate, g) * g for path, g in gradients.items()}, state
        sums = {path: momentum * state["momentum"][path] + g for path, g in gradients.items()}
        ahead = {path: momentum * sums[path] + g for path, g in gradients.items()} if nesterov else sums
        return {path: as_dtype(minus_rate, u) * u for path, u in ahead.items()}, {"momentum": sums}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        rate = rate_at(learning_rate, step)
        for dtype, variables in by_dtype(params):
            lr, decay = kernel_scalar(rate, dtype), kernel_scalar(momentum, dtype)
            for path, variable in variables.items():
                if momentum:
                    tf.raw_ops.ResourceApplyMomentum(
                        var=variable.handle,
                        accum=slots["momentum"][path].handle,
                        lr=lr,
                        grad=gradients[path],
                        momentum=decay,
                        use_nesterov=nesterov,
                    )
                else:
                    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=lr, delta=gradients[path])

    return stateful("sgd", init, update, fused, linear=True, learning_rate=learning_rate)
