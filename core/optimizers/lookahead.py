"""Lookahead and SAM: wrappers of another optimizer, each with a second copy of the parameters."""

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_positive, check_size
from core.choice import one_of
from core.optimizers.chain import chain
from core.optimizers.norms import measured_together
from core.optimizers.rates import as_dtype, newest_share, updates_after
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rates, State, Tensors, Transform

_RECENT = 0.9  # the decay of batch statistics at SAM's centre, measured in benchmarks/notes/averaged_statistics.md


@gin.configurable
@schedulable
def lookahead(inner: Transform, *, sync_period: int = 5, slow_step_size: float = 0.5) -> Transform:
    """Follows Zhang et al. (2019), "Lookahead optimizer: k steps forward, 1 step back". Reads parameters and the step.

    The parameters are the fast weights. Evaluation reads the slow weights, returned by `Optimizer.shadow()`, and
    batch statistics averaged like these.
    """
    check_size(sync_period=sync_period)
    check_positive(slow_step_size=slow_step_size)
    rule = chain(inner)

    def init(params: Tensors) -> State:
        return {"slow": dict(params), **rule.init(params)}

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        updates, new = rule.update(gradients, state, params, step=step, value=value)
        sync = tf.equal((step + 1) % sync_period, 0)
        slow, moves = {}, {}
        for path, old in state["slow"].items():
            ahead = params[path] + updates[path] - old
            slow[path] = one_of(sync, old + slow_step_size * ahead, old)
            moves[path] = one_of(sync, updates[path] - (1.0 - slow_step_size) * ahead, updates[path])
        return moves, {"slow": slow, **new}

    def share(step: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.equal((step + 1) % sync_period, 0), slow_step_size, 0.0)

    return Transform(
        "lookahead",
        init,
        update,
        shadow=lambda state, params, step: state["slow"],
        rates=rule.rates,
        shares=lambda params: dict.fromkeys(params, share),
    )


@gin.configurable
@schedulable
def sam(inner: Transform, *, rho: float = 0.05) -> Transform:
    """Follows Foret et al. (2021), "Sharpness-aware minimization for efficiently improving generalization".

    The update depends on the parameters.

    Updates alternate. Updates 0, 2, ... climb `rho` along the gradient, away from the centre. Updates 1, 3, ... pass
    the gradient there to `inner`, which moves the centre. So two updates, each with its own batch, make one, and the
    schedules of `inner` count pairs. Evaluation reads the centre, and statistics of recent batches at the centre.
    """
    check_positive(rho=rho)
    rule = chain(inner)

    def init(params: Tensors) -> State:
        return {"centre": dict(params), **rule.init(params)}

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        climbs = tf.equal(step % 2, 0)
        centre = {path: one_of(climbs, p, state["centre"][path]) for path, p in params.items()}
        steps, new = rule.update(gradients, state, centre, step=step // 2, value=value)
        over, norm, _ = measured_together(gradients)
        reach = tf.math.divide_no_nan(rho, norm)
        updates = {
            path: one_of(climbs, as_dtype(reach, g) * g, centre[path] - params[path] + steps[path])
            for path, g in over.items()
        }
        kept = {
            slot: {path: one_of(climbs, state[slot][path], x) for path, x in values.items()}
            for slot, values in new.items()
        }
        return updates, {"centre": centre, **kept}

    def shadow(state: State, params: Tensors, step: tf.Tensor) -> Tensors:
        climbs = tf.equal(step % 2, 0)
        return {path: one_of(climbs, p, state["centre"][path]) for path, p in params.items()}

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        assert rule.rates
        return rule.rates(before, state, params, step=step // 2)

    def share(step: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.equal(step % 2, 0), newest_share(updates_after(step // 2), _RECENT), 0.0)

    return Transform(
        "sam",
        init,
        update,
        shadow=shadow,
        rates=rates if rule.rates else None,
        shares=lambda params: dict.fromkeys(params, share),
    )
