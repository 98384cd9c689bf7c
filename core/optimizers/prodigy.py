"""Prodigy: AdamW that estimates its own learning rate."""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_positive, check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import adam_moments, adam_scalars, check_adam, zeros
from core.optimizers.norms import dot, sum_of_magnitudes
from core.optimizers.rates import as_dtype, rate_at, updates_after
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Rates, RatesFunction, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def prodigy(
    learning_rate: float | Schedule = 1.0,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    d_0: float = 1e-6,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Mishchenko and Defazio (2024), "Prodigy: an expeditiously adaptive parameter-free learner".

    Updates are AdamW's, with the learning rate γ d and the gradients d g. `learning_rate` is γ: leave it at 1, or give
    a schedule that peaks at 1. d starts at `d_0` and estimates the distance to the solution:

        d ← max(d, r / ‖s‖₁)
        r ← √β₂ r + γ d² ⟨g, θ₀ - θ⟩    [scalar]
        s ← √β₂ s + γ d² g              [as the parameters]

    Its sums run over all parameters of this rule: within `groups`, each group has its own d. Updates depend on
    parameters and step.
    """
    check_adam(beta_1, beta_2, epsilon)
    check_rate(weight_decay=weight_decay)
    check_positive(d_0=d_0)
    decay, beta_3 = Decay(weight_decay, no_decay), beta_2**0.5

    def init(params: Tensors) -> State:
        start = {slot: {"": tf.constant(x, tf.float32)} for slot, x in (("d", d_0), ("r", 0.0))}
        return {"start": dict(params), **zeros("m", "v", "s")(params), **start}

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        d = estimate(state["d"][""], state["r"][""], sum_of_magnitudes(state["s"]))
        alpha, _ = adam_scalars(updates_after(step), beta_1, beta_2, epsilon, d * rate)
        share = alpha * d / d_0  # over d₀, which cancels in r / ‖s‖₁: d² alone nears the end of float32's range
        away = {path: state["start"][path] - p for path, p in params.items()}
        r = beta_3 * state["r"][""] + share * dot(gradients, away)
        s = {path: beta_3 * state["s"][path] + as_dtype(share, g) * g for path, g in gradients.items()}
        moments = adam_moments(state, {path: as_dtype(d, g) * g for path, g in gradients.items()}, beta_1, beta_2)
        updates = {
            path: as_dtype(-alpha, m) * m / (tf.sqrt(moments["v"][path]) + as_dtype(d * epsilon, m))
            for path, m in moments["m"].items()
        }
        new = {"start": state["start"], **moments, "s": s, "d": {"": d}, "r": {"": r}}
        return decay.add(updates, params, step, factor=-alpha), new

    made = rule("prodigy", init, scale, learning_rate, decay=decay)
    return made._replace(rates=estimated_rates(learning_rate))


def estimate(d: tf.Tensor, numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    """Returns the larger of the float32 scalar `d` and the quotient, which is zero if `denominator` is."""
    return tf.maximum(d, tf.math.divide_no_nan(numerator, denominator))


def estimated_rates(learning_rate: float | Schedule) -> RatesFunction:
    """Returns a `rates` function that reports `learning_rate` times the slot `d`."""

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        return {"": state["d"][""] * rate_at(learning_rate, step)}

    return rates
