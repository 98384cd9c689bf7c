"""Mechanic: learns the learning rate of another optimizer."""

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_not_negative, check_positive, check_size
from core.optimizers.chain import chain
from core.optimizers.norms import dot, global_norm
from core.optimizers.rates import as_dtype
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rates, State, Tensors, Transform


@gin.configurable
@schedulable
def mechanic(
    inner: Transform,
    *,
    weight_decay: float = 1e-2,
    epsilon: float = 1e-8,
    initial_scale: float = 1e-6,
    num_betas: int = 6,
) -> Transform:
    """Follows Cutkosky et al. (2023), "Mechanic: a learning rate tuner".

    Scales the updates u of `inner`, whose rate is 1 or a schedule that peaks at 1. The parameters stay at θ₀ + S Δ,
    where Δ is the sum of the updates so far, and S = Σ s is learned from h, the gradient along Δ:

        h = -⟨g + λ S ‖g‖ θ / ‖θ‖, Δ⟩           [scalar]; λ is `weight_decay`
        m' = max(β m, |h| + ε)                   [num_betas]; β = 0.9, 0.99, 0.999, ...
        v ← β² v + h²                            [num_betas]
        r ← β r + s · clip(h, -m, m), m ← m'     [num_betas]
        s ← (s₀ m / num_betas + max(r, 0)) / (√v + ε)    [num_betas]; s₀ is `initial_scale`

    The sums run over all parameters of this rule: within `groups`, each group has its own S. Updates depend on the
    parameters. An average of the weights comes after: `chain(mechanic(adam(1.0)), ema())`.
    """
    check_not_negative(weight_decay=weight_decay)
    check_positive(epsilon=epsilon, initial_scale=initial_scale)
    check_size(num_betas=num_betas)
    rule = chain(inner)
    kept = [part.name for part in rule.parts if part.shadow]
    if kept:
        raise ValueError(
            f"`inner` has `{kept[0]}`, which keeps copies of weights that `mechanic` then moves elsewhere; chain an "
            "average after it, such as `chain(mechanic(adam(1.0)), ema())`, or leave it out."
        )
    betas = [1.0 - 0.1 ** (i + 1) for i in range(num_betas)]

    def init(params: Tensors) -> State:
        sums = {slot: {"": tf.zeros([num_betas], tf.float32)} for slot in ("m", "r", "v")}
        scales = tf.fill([num_betas], tf.constant(initial_scale, tf.float32))
        sums |= {"scales": {"": scales}, "scale": {"": tf.reduce_sum(scales)}}
        return {"start": dict(params), **sums, **rule.init(params)}

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        steps, new = rule.update(gradients, state, params, step=step, value=value)
        scale = state["scale"][""] + epsilon
        back = {path: (state["start"][path] - p) / as_dtype(scale, p) for path, p in params.items()}  # -Δ
        size, norm = (tf.cast(global_norm(x), tf.float32) for x in (params, gradients))
        pull = weight_decay * state["scale"][""] * norm / (size + epsilon)
        h = dot(gradients, back) + pull * dot(params, back)

        beta = tf.constant(betas, tf.float32)
        m, r, v, scales = (state[slot][""] for slot in ("m", "r", "v", "scales"))
        r = beta * r + scales * tf.maximum(tf.minimum(h, m), -m)
        m = tf.maximum(beta * m, tf.abs(h) + epsilon)
        v = tf.square(beta) * v + tf.square(h)
        scales = (initial_scale / num_betas * m + tf.maximum(r, 0.0)) / (tf.sqrt(v) + epsilon)
        total = tf.reduce_sum(scales)
        # θ₀ + S' (Δ + u) - θ, in the order that cancels least.
        updates = {path: as_dtype(scale - total, u) * back[path] + as_dtype(total, u) * u for path, u in steps.items()}
        sums = {slot: {"": x} for slot, x in (("m", m), ("r", r), ("v", v), ("scales", scales), ("scale", total))}
        return updates, {"start": state["start"], **sums, **new}

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        assert rule.rates
        inner_rates = rule.rates(before, state, params, step=step)
        return {name: state["scale"][""] * rate for name, rate in inner_rates.items()}

    return Transform("mechanic", init, update, rates=rates if rule.rates else None)
