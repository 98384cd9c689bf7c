"""Schedule-free AdamW."""

from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_not_negative, check_rate, is_scheduled
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, check_adam, squares, zeros
from core.optimizers.rates import as_dtype, newest_share, updates_after, weight_seen
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def schedule_free_adamw(
    learning_rate: float | Schedule = 0.0025,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_power: float = 2.0,
) -> Transform:
    """Follows Defazio et al. (2024), "The road less scheduled". Updates depend on parameters and step.

    The parameters are the paper's y, at which gradients are taken, and z is a slot. Evaluation reads the average x,
    returned by `Optimizer.shadow()`. A schedule may warm the rate up, but needn't decay it. Evaluation reads batch
    statistics averaged with decay `beta_1`, since x moves little in so few updates.
    """
    check_adam(beta_1, beta_2, epsilon)
    check_rate(weight_decay=weight_decay)
    check_not_negative(weight_power=weight_power)
    if not is_scheduled(beta_1) and beta_1 == 0.0:
        raise ValueError("`beta_1` is 0.0; x is worked out from y and z by dividing by it: use a number in (0, 1).")

    decay = Decay(weight_decay)

    def init(params: Tensors) -> State:
        scalars = {slot: {"": tf.zeros([], tf.float32)} for slot in ("largest_rate", "weight_sum")}
        return {"z": dict(params), **zeros("v")(params), **scalars}

    def x_of(y: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        return (y - (1.0 - beta_1) * z) / beta_1

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        largest = tf.maximum(state["largest_rate"][""], rate)
        weight = tf.pow(largest, weight_power)
        weight_sum = state["weight_sum"][""] + weight
        share = tf.math.divide_no_nan(weight, weight_sum)  # z's share in x; zero while the rate is still zero
        v = averages(state["v"], squares(gradients), beta_2)
        correction = tf.sqrt(weight_seen(beta_2, updates_after(step)))
        scaled = {path: g / (tf.sqrt(v[path]) / as_dtype(correction, g) + epsilon) for path, g in gradients.items()}
        directions = decay.add(scaled, params, step)
        updates, new_z = {}, {}
        for path, y in params.items():
            z = state["z"][path]
            x = x_of(y, z)
            z -= as_dtype(rate, y) * directions[path]
            x = as_dtype(1.0 - share, y) * x + as_dtype(share, y) * z
            updates[path] = beta_1 * x + (1.0 - beta_1) * z - y
            new_z[path] = z
        return updates, {"z": new_z, "v": v, "largest_rate": {"": largest}, "weight_sum": {"": weight_sum}}

    def shadow(state: State, params: Tensors, step: tf.Tensor) -> Tensors:
        return {path: x_of(y, state["z"][path]) for path, y in params.items()}

    def shares(params: Mapping[str, Any]) -> Mapping[str, Callable[[tf.Tensor], tf.Tensor]]:
        return dict.fromkeys(params, lambda step: newest_share(updates_after(step), beta_1))

    found = rule("schedule_free_adamw", init, scale, learning_rate, decay=decay)
    return found._replace(shadow=shadow, shares=shares)
