"""Weight averages: evaluation and export read the averages, while training continues with the weights.

Put an average last in a chain: `chain(adamw(1e-3), ema(0.999))`. `Optimizer.shadow()` returns `{path: average}`.
"""

from collections.abc import Callable

import gin
import tensorflow as tf

from core.arguments import check_count, check_fraction
from core.optimizers.rates import as_dtype, newest_share, updates_after
from core.optimizers.transform import State, Tensors, Transform, observer


@gin.configurable
def ema(decay: float = 0.999, *, debias: bool = True) -> Transform:
    """Returns an exponential moving average of the weights.

    With `debias`, the initial weights don't count, only the weights after each update. Without it, the average starts
    at the initial weights, whose share after t updates is `decay ** t`.
    """
    check_fraction(decay=decay)

    def share(t: tf.Tensor) -> float | tf.Tensor:
        return newest_share(t, decay) if debias else 1.0 - decay

    return _average("ema", share)


@gin.configurable
def polyak(start: int = 0) -> Transform:
    """Follows Polyak and Juditsky (1992), "Acceleration of stochastic approximation by averaging", over all weights.

    The weights of the first `start` updates don't count.
    """
    check_count(start=start)
    return _average("polyak", lambda t: 1.0 / tf.maximum(t - start, 1.0))


def _average(name: str, share: Callable[[tf.Tensor], float | tf.Tensor]) -> Transform:
    """Makes an observer that adds `share(t) * (weights - average)` to the average in update t = 1, 2, ..."""

    def observe(state: State, params: Tensors, step: tf.Tensor) -> State:
        newest = share(updates_after(step))
        old = state["average"]
        return {"average": {path: old[path] + as_dtype(newest, p) * (p - old[path]) for path, p in params.items()}}

    return observer(
        name,
        lambda params: {"average": dict(params)},
        observe,
        shadow=lambda state, params, step: state["average"],
        shares=lambda params: dict.fromkeys(params, lambda step: share(updates_after(step))),
    )
