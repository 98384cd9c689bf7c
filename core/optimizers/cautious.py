"""Cautious updates and cautious weight decay: masks over the update of any rule."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_rate
from core.optimizers.chain import chain
from core.optimizers.decay import Decay
from core.optimizers.transform import Schedule, State, Tensors, Transform


@gin.configurable
def cautious(inner: Transform) -> Transform:
    """Follows Liang et al. (2024), "Cautious optimizers: improving training with one line of code".

    An update u of `inner` becomes u φ / max(mean(φ), 0.001). The mask φ is 1 where u has the opposite sign of the
    gradient, else 0. The mean is over one parameter. Decay by `inner` counts as a part of u; `cautious_decay` around
    this transform decays apart.
    """
    rule = _without_shadow("cautious", inner)

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        updates, new = rule.update(gradients, state, params, step=step, value=value)
        masked = {}
        for path, u in updates.items():
            mask = tf.cast(tf.sign(u) * tf.sign(gradients[path]) < 0, u.dtype)  # u * g might underflow
            # As a product, so that NaN stays: a mask of zero would hide it in a selection.
            masked[path] = u * (mask / tf.maximum(tf.reduce_mean(mask), 1e-3))
        return masked, new

    return Transform("cautious", rule.init, update, rates=rule.rates)


@gin.configurable
def cautious_decay(
    inner: Transform, *, weight_decay: float | Schedule = 0.1, no_decay: Sequence[str] = ()
) -> Transform:
    """Follows Chen et al. (2025), "Cautious weight decay": decays where the update moves a parameter towards zero.

    An update u of `inner`, at learning rate η, becomes u - η λ θ where u θ ≤ 0, and stays u elsewhere. λ is
    `weight_decay`. Give `inner` no decay of its own.
    """
    check_rate(weight_decay=weight_decay)
    rule, decay = _without_shadow("cautious_decay", inner), Decay(weight_decay, no_decay)

    def init(params: Tensors) -> State:
        decay.paths(params)
        state = rule.init(params)
        rates = rule.rates({}, state, params, step=tf.zeros([], tf.int64)) if rule.rates else {}
        if list(rates) != [""]:
            raise ValueError(
                f"`inner` of `cautious_decay` has {len(rates)} learning rates, but the decay is multiplied by one; "
                "give it a rule, and if there are `groups`, put `cautious_decay` around the rule of each."
            )
        return state

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        updates, new = rule.update(gradients, state, params, step=step, value=value)
        assert rule.rates
        rate = rule.rates({}, new, params, step=step)[""]
        decaying = {
            path: tf.where(tf.sign(u) * tf.sign(params[path]) <= 0, params[path], tf.zeros_like(u))
            for path, u in updates.items()
        }
        return decay.add(updates, decaying, step, factor=-rate), new

    return Transform("cautious_decay", init, update, rates=rule.rates)


def _without_shadow(name: str, inner: Transform) -> Transform:
    """Returns `chain(inner)`; raises an error if a part of it keeps other weights, which would not see the mask."""
    rule = chain(inner)
    if rule.shadow:
        kept = ", ".join(f"`{part.name}`" for part in rule.parts if part.shadow)
        raise ValueError(
            f"`inner` of `{name}` has {kept}, which keeps weights of its own and would miss the masked update; put "
            f"`{name}` within it or before it: `lookahead({name}(adam(1e-3)))`, `chain({name}(adam(1e-3)), ema())`."
        )
    return rule
