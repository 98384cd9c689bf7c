"""Weight averages: evaluation and export read the averages, while training continues with the weights.

Put an average last in a chain: `chain(adamw(1e-3), ema(0.999))`. `Optimizer.shadow()` returns `{path: average}`.
"""

from collections.abc import Callable
from typing import Literal

import gin
import tensorflow as tf

from core.arguments import check_choice, check_count, check_fraction
from core.optimizers.power_profile import gamma_of
from core.optimizers.rates import as_dtype, newest_share, updates_after
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import State, Tensors, Transform, observer

_DECAY = 0.999


@gin.configurable
@schedulable
def ema(
    decay: float = _DECAY,
    *,
    debias: bool = True,
    start: int = 0,
    profile: Literal["exponential", "power"] = "exponential",
    std: float | None = None,
) -> Transform:
    """Returns a moving average of the weights, with the given `profile` of weights on past updates.

    "exponential": θ' ← θ' + s (θ − θ') with s = (1 − `decay`) / (1 − `decay` ** t) in update t. With `debias`, the
    initial weights don't count, only the weights after each update. Without it, s = 1 − `decay`: the average starts at
    the initial weights, whose share after t updates is `decay ** t`.

    "power": s = 1 − (1 − 1 / t) ** (γ + 1), so that update τ counts as τ ** γ (Karras et al., 2024, "Analyzing and
    improving the training dynamics of diffusion models"). `std` < 0.2887 is the width of the average as a share of the
    run so far, and determines γ. From snapshots of one or several such averages, `python -m trainers.average
    --std=0.1` computes the average of another width.

    For a warm-up, the weights of the first `start` updates don't count: t is the number of updates since then.
    """
    check_choice("profile", profile, ("exponential", "power"))
    check_fraction(decay=decay)
    check_count(start=start)
    if profile == "power":
        if std is None or decay != _DECAY or not debias:
            raise ValueError(
                f"`profile` is 'power', with `std` {std}, `decay` {decay} and `debias` {debias}; its width is `std` "
                "alone: give `ema(profile='power', std=0.1)`."
            )
        return _average("ema", _power_share(gamma_of(std)), start, std=std)
    if std is not None:
        raise ValueError(f"`std` is {std}, which is the width of `profile='power'`: give that, or leave `std` out.")

    def share(t: tf.Tensor) -> float | tf.Tensor:
        if debias:
            return newest_share(t, decay)
        return tf.where(t > start, 1.0 - decay, 1.0) if start else 1.0 - decay

    return _average("ema", share, start if debias else 0)


@gin.configurable
def polyak(start: int = 0) -> Transform:
    """Follows Polyak and Juditsky (1992), "Acceleration of stochastic approximation by averaging", over all weights.

    The weights of the first `start` updates don't count.
    """
    check_count(start=start)
    return _average("polyak", lambda t: 1.0 / t, start)


def _power_share(gamma: float) -> Callable[[tf.Tensor], tf.Tensor]:
    # As a power of a float32 difference it would be off by a tenth of itself after a million updates.
    return lambda t: -tf.math.expm1((gamma + 1.0) * tf.math.log1p(-1.0 / t))


def _average(
    name: str, share: Callable[[tf.Tensor], float | tf.Tensor], start: int, *, std: float | None = None
) -> Transform:
    """Makes an observer that adds `share(t) * (weights - average)` to the average in update t = 1, 2, ...

    t counts from update `start` on; before, it is 1. With `std`, the state also has t and `std`, for readers of
    checkpoints.
    """

    def count(step: tf.Tensor) -> tf.Tensor:
        t = updates_after(step)
        return tf.maximum(t - start, 1.0) if start else t

    def snapshot(t: tf.Tensor) -> State:
        return {} if std is None else {"count": {"": t}, "std": {"": tf.constant(std)}}

    def observe(state: State, params: Tensors, step: tf.Tensor) -> State:
        t = count(step)
        newest, old = share(t), state["average"]
        average = {path: old[path] + as_dtype(newest, p) * (p - old[path]) for path, p in params.items()}
        return {"average": average, **snapshot(t)}

    return observer(
        name,
        lambda params: {"average": dict(params), **snapshot(tf.zeros([]))},
        observe,
        shadow=lambda state, params, step: state["average"],
        shares=lambda params: dict.fromkeys(params, lambda step: share(count(step))),
    )
