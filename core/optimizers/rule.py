"""Update rules: a pure scaling function, learning rate, weight decay, and TensorFlow's fused kernel for all of these.

A rule multiplies by its learning rate itself; no later transform does. So Adam's bias corrections and rate form one
scalar, rounded once for all parameters, as in TensorFlow's kernel.
"""

from collections.abc import Callable, Collection

import tensorflow as tf

from core.arguments import check_rate
from core.optimizers.decay import Decay
from core.optimizers.kernels import Kernel
from core.optimizers.narrow_slots import FLOAT32, check_slots, narrow_slots
from core.optimizers.rates import as_dtype, rate_at
from core.optimizers.transform import Rate, Schedule, Slots, State, Tensors, Transform, Variables, stateful

Scale = Callable[[Tensors, State, Tensors, tf.Tensor, Rate], tuple[Tensors, State]]


def scale_by_rate(directions: Tensors, rate: Rate) -> dict[str, tf.Tensor]:
    """Returns `{path: -rate * direction}`."""
    return {path: as_dtype(-rate, u) * u for path, u in directions.items()}


def rule(
    name: str,
    init: Callable[[Tensors], State],
    scale: Scale,
    learning_rate: float | Schedule,
    *,
    decay: Decay | None = None,
    kernel: Kernel | None = None,
    linear: bool = False,
    slots: str = FLOAT32,
    squares: Collection[str] = (),
) -> Transform:
    """Makes a transform from `scale(gradients, state, params, step, rate) -> (updates, state)`.

    `decay` has its patterns checked here, but `scale` must add the decay itself. With a `kernel`, the decay is
    subtracted from the parameters before the kernel's update.

    `slots` is the dtype in which state is stored. Other dtypes than "float32" have no kernel, and need a `scale` that
    treats each parameter separately; state named in `squares` is an average of squares.
    """
    check_rate(learning_rate=learning_rate)
    check_slots(slots)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        return scale(gradients, state, params, step, rate_at(learning_rate, step))

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        assert kernel
        rate = rate_at(learning_rate, step)
        if decay:
            decay.shrink(params, step, factor=rate)
        kernel.apply(gradients, slots, params, step, rate)

    made = stateful(name, init, update, fused if kernel else None, linear=linear, learning_rate=learning_rate)
    stored = narrow_slots(made, slots, squares=squares)

    def checked_init(params: Tensors) -> State:
        if decay:
            decay.paths(params)
        return stored.init(params)

    return stored._replace(init=checked_init)
