"""DoG: gradient descent by distance over gradients."""

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_positive
from core.optimizers.norms import global_norm
from core.optimizers.rates import rate_at
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Rates, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def dog(learning_rate: float | Schedule = 1.0, *, initial_distance: float = 1e-6, epsilon: float = 1e-8) -> Transform:
    """Follows Ivgi et al. (2023), "DoG is SGD's best friend: a parameter-free dynamic step size schedule".

    Steps θ ← θ - γ η g, where the rate η comes from the largest distance to the initial parameters so far:

        η = r̄ / √(G + ε)
        r̄ ← max(r̄, ‖θ - θ₀‖)    [scalar]
        G ← G + ‖g‖²            [scalar]

    r̄ starts at `initial_distance` times 1 + ‖θ₀‖. `learning_rate` is γ. The paper evaluates an average of the
    weights: `chain(dog(), ema())`. The norms run over all parameters of this rule: within `groups`, each group has its
    own η. Updates depend on the parameters.
    """
    check_positive(initial_distance=initial_distance, epsilon=epsilon)

    def init(params: Tensors) -> State:
        distance = initial_distance * (1.0 + tf.cast(global_norm(params), tf.float32))
        return {"start": dict(params), "distance": {"": distance}, "squares": {"": tf.zeros([], tf.float32)}}

    def rate_of(state: State, rate: Rate) -> tf.Tensor:
        return rate * state["distance"][""] / tf.sqrt(state["squares"][""] + epsilon)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        distance = global_norm({path: p - state["start"][path] for path, p in params.items()})
        distance = tf.maximum(state["distance"][""], tf.cast(distance, tf.float32))
        squares = state["squares"][""] + tf.square(tf.cast(global_norm(gradients), tf.float32))
        new = {"start": state["start"], "distance": {"": distance}, "squares": {"": squares}}
        return scale_by_rate(gradients, rate_of(new, rate)), new

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        return {"": rate_of(state, rate_at(learning_rate, step))}

    return rule("dog", init, scale, learning_rate)._replace(rates=rates)
