"""Sophia: steps scaled by the curvature of the loss."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_choice, check_fraction, check_not_negative, check_positive, check_rate, check_size
from core.choice import one_of
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, moved, zeros
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Curvature, Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def sophia(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.1,
    beta_1: float = 0.96,
    beta_2: float = 0.99,
    gamma: float = 0.01,
    epsilon: float = 1e-12,
    estimate_every: int = 10,
    estimator: str = "hutchinson",
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Liu et al. (2024), "Sophia: a scalable stochastic second-order optimizer for language model pre-training"

    Steps θ ← θ - α (clip(m / max(γ h, ε), -1, 1) + λ θ), where m averages the gradients and h estimates of the
    Hessian's diagonal:

        m ← β₁ m + (1 - β₁) g
        h ← β₂ h + (1 - β₂) ĥ, every `estimate_every` updates; ĥ = u ⊙ ∇⟨∇L, u⟩, with random signs u

    The engine computes Hutchinson's estimate ĥ with a second backward pass over the same batch, so the loss must be
    twice differentiable. With `estimator="gauss_newton_bartlett"` (algorithm 2), ĥ = B ĝ ⊙ ĝ instead, where ĝ is the
    mean gradient of B losses on labels drawn from the model. `Update.sampled_loss` computes these losses, and the
    authors use γ = 0.05. An estimate that isn't finite is skipped. Updates depend on parameters and step.
    """
    check_choice("estimator", estimator, ("hutchinson", "gauss_newton_bartlett"))
    check_fraction(beta_1=beta_1, beta_2=beta_2)
    check_rate(weight_decay=weight_decay)
    check_not_negative(gamma=gamma)
    check_positive(epsilon=epsilon)
    check_size(estimate_every=estimate_every)
    decay = Decay(weight_decay, no_decay)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        m, h = averages(state["m"], gradients, beta_1), state["curvature"]
        directions = {path: tf.clip_by_value(m[path] / tf.maximum(gamma * h[path], epsilon), -1.0, 1.0) for path in m}
        return scale_by_rate(decay.add(directions, params, step), rate), {"m": m, "curvature": h}

    def take(estimate: Tensors, state: State, step: tf.Tensor) -> State:
        due = tf.equal(step % estimate_every, 0)
        taken = {}
        for path, h in state["curvature"].items():
            newest = tf.where(tf.math.is_finite(estimate[path]), moved(h, estimate[path], 1.0 - beta_2), h)
            taken[path] = one_of(due, newest, h)
        return {**state, "curvature": taken}

    made = rule("sophia", zeros("m", "curvature"), scale, learning_rate, decay=decay)
    return made._replace(curvature=Curvature(estimate_every, take, sampled=estimator != "hutchinson"))
