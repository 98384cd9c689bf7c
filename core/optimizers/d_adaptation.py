"""D-Adaptation: AdamW that estimates its own learning rate."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_positive, check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import adam_scalars, averages, check_adam, squares, zeros
from core.optimizers.norms import dot, sum_of_magnitudes
from core.optimizers.prodigy import estimate, estimated_rates
from core.optimizers.rates import as_dtype, updates_after
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def dadapt_adamw(
    learning_rate: float | Schedule = 1.0,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    d_0: float = 1e-6,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Defazio and Mishchenko (2023), "Learning-rate-free learning by D-adaptation".

    Updates are AdamW's, with the learning rate λ = γ d. `learning_rate` is γ: leave it at 1, or give a schedule that
    peaks at 1. d starts at `d_0` and estimates the distance to the solution:

        d ← max(d, r / ((1 - √β₂) ‖s‖₁))
        r ← √β₂ r + (1 - √β₂) λ ⟨g, s / (√v + ε)⟩    [scalar]
        s ← √β₂ s + (1 - √β₂) λ g                    [as the parameters]

    Its sums run over all parameters of this rule: within `groups`, each group has its own d. Updates depend on
    parameters and step.
    """
    check_adam(beta_1, beta_2, epsilon)
    check_rate(weight_decay=weight_decay)
    check_positive(d_0=d_0, epsilon=epsilon)
    decay, beta_3 = Decay(weight_decay, no_decay), beta_2**0.5

    def init(params: Tensors) -> State:
        start = {slot: {"": tf.constant(x, tf.float32)} for slot, x in (("d", d_0), ("r", 0.0))}
        return {**zeros("m", "v", "s")(params), **start}

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        d = estimate(state["d"][""], state["r"][""], (1.0 - beta_3) * sum_of_magnitudes(state["s"]))
        alpha, _ = adam_scalars(updates_after(step), beta_1, beta_2, epsilon, d * rate)
        weighted = {path: s / (tf.sqrt(state["v"][path]) + epsilon) for path, s in state["s"].items()}
        r = beta_3 * state["r"][""] + (1.0 - beta_3) * alpha * dot(gradients, weighted)
        moved = {path: as_dtype(alpha, g) * g for path, g in gradients.items()}
        m, s = averages(state["m"], moved, beta_1), averages(state["s"], moved, beta_3)
        v = averages(state["v"], squares(gradients), beta_2)
        updates = {path: -m[path] / (tf.sqrt(v[path]) + epsilon) for path in gradients}
        new = {"m": m, "v": v, "s": s, "d": {"": d}, "r": {"": r}}
        return decay.add(updates, params, step, factor=-alpha), new

    made = rule("dadapt_adamw", init, scale, learning_rate, decay=decay)
    return made._replace(rates=estimated_rates(learning_rate))
