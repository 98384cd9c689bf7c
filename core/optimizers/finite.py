"""A transform that skips updates with non-finite gradients."""

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_count
from core.choice import one_of
from core.optimizers.chain import chain
from core.optimizers.transform import Rates, State, Tensors, Transform


@gin.configurable
def apply_if_finite(inner: Transform, *, max_consecutive_errors: int = 5) -> Transform:
    """Skips an update if a gradient isn't finite, at most `max_consecutive_errors` times in a row.

    For custom loops only: the engine ends a run at a non-finite step. The schedules of `inner` count applied updates.
    """
    check_count(max_consecutive_errors=max_consecutive_errors)
    rule = chain(inner)

    def init(params: Tensors) -> State:
        zero = tf.zeros([], tf.int64)
        return {"errors_in_a_row": {"": zero}, "rejected": {"": zero}, **rule.init(params)}

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients.values()])
        errors = tf.where(finite, tf.constant(0, tf.int64), state["errors_in_a_row"][""] + 1)
        accepted = finite | (errors > max_consecutive_errors)
        rejected = state["rejected"][""]
        updates, new = rule.update(gradients, state, params, step=step - rejected, value=value)
        return {path: one_of(accepted, u, tf.negative(tf.zeros_like(u))) for path, u in updates.items()}, {
            "errors_in_a_row": {"": errors},
            "rejected": {"": rejected + tf.cast(~accepted, tf.int64)},
            **{
                slot: {path: one_of(accepted, x, state[slot][path]) for path, x in values.items()}
                for slot, values in new.items()
            },
        }

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        assert rule.rates
        return rule.rates(before, state, params, step=tf.maximum(step - state["rejected"][""], 0))

    return Transform(
        "apply_if_finite", init, update, shadow=rule.shadow, rates=rates if rule.rates else None, shares=rule.shares
    )
