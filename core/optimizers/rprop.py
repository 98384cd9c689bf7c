"""Rprop: resilient backpropagation, for gradients of full batches."""

import gin
import tensorflow as tf

from core.arguments import check_positive, is_scheduled
from core.optimizers.moments import zeros
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import State, Tensors, Transform, stateful


@gin.configurable
@schedulable
def rprop(
    initial_step_size: float = 0.01,
    *,
    eta_minus: float = 0.5,
    eta_plus: float = 1.2,
    min_step_size: float = 1e-6,
    max_step_size: float = 50.0,
) -> Transform:
    """Follows Igel and Hüsken (2003), "Empirical evaluation of the improved Rprop learning algorithms" (iRprop⁻).

    Steps θ ← θ - Δ sign(g), with a step size Δ for each weight. It grows by `eta_plus` if g has the sign of the
    previous gradient. It shrinks by `eta_minus` if the sign has changed, and the weight then waits for one update.
    Give the gradient of a full batch, because the noise of small batches changes signs.
    """
    check_positive(initial_step_size=initial_step_size, min_step_size=min_step_size, max_step_size=max_step_size)
    check_positive(eta_minus=eta_minus, eta_plus=eta_plus)
    if not is_scheduled(eta_minus) and eta_minus >= 1.0:
        raise ValueError(f"`eta_minus` is {eta_minus!r}; it makes steps smaller: use a number in (0, 1).")
    if not is_scheduled(eta_plus) and eta_plus <= 1.0:
        raise ValueError(f"`eta_plus` is {eta_plus!r}; it makes steps larger: use a number above 1.")
    if not (is_scheduled(min_step_size) or is_scheduled(max_step_size)) and min_step_size > max_step_size:
        raise ValueError(
            f"`min_step_size` is {min_step_size!r}, but `max_step_size` is {max_step_size!r}; make the first smaller."
        )

    def init(params: Tensors) -> State:
        sizes = {path: tf.fill(p.shape, tf.constant(initial_step_size, p.dtype)) for path, p in params.items()}
        return {"step_size": sizes, **zeros("sign")(params)}

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        sizes, signs, updates = {}, {}, {}
        for path, g in gradients.items():
            sign, size = tf.sign(g), state["step_size"][path]
            agreement = sign * state["sign"][path]
            larger, smaller = tf.minimum(eta_plus * size, max_step_size), tf.maximum(eta_minus * size, min_step_size)
            size = tf.where(agreement > 0.0, larger, tf.where(agreement < 0.0, smaller, size))
            sign = tf.where(agreement < 0.0, tf.zeros_like(sign), sign)
            sizes[path], signs[path], updates[path] = size, sign, -size * sign
        return updates, {"step_size": sizes, "sign": signs}

    return stateful("rprop", init, update)
