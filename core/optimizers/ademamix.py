"""AdEMAMix."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, check_adam, squares, zeros
from core.optimizers.rates import as_dtype, rate_at, updates_after, weight_seen
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def ademamix(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    alpha: float | Schedule = 5.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    beta_3: float | Schedule = 0.9999,
    epsilon: float = 1e-8,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Pagliardini et al. (2024), "The AdEMAMix optimizer: better, faster, older".

    Adam's direction becomes (m̂ + α s) / (√v̂ + ε), where s averages gradients with β3, without bias correction. The
    paper warms both up: `alpha` is `linear(0.0, 5.0, steps=T)`, and `beta_3` is `half_life(0.9, 0.9999, steps=T)`.
    """
    check_rate(weight_decay=weight_decay, alpha=alpha)
    check_adam(beta_1, beta_2, epsilon)
    if not callable(beta_3):
        check_fraction(beta_3=beta_3)
    decay = Decay(weight_decay, no_decay)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        m, v = averages(state["m"], gradients, beta_1), averages(state["v"], squares(gradients), beta_2)
        slow = averages(state["slow"], gradients, rate_at(beta_3, step))
        t = updates_after(step)
        root = tf.sqrt(weight_seen(beta_2, t))
        of_m, of_slow = -rate * root / weight_seen(beta_1, t), -rate * root * rate_at(alpha, step)
        updates = {
            path: (as_dtype(of_m, x) * x + as_dtype(of_slow, x) * slow[path])
            / (tf.sqrt(v[path]) + as_dtype(epsilon * root, x))
            for path, x in m.items()
        }
        return decay.add(updates, params, step, factor=-rate), {"m": m, "slow": slow, "v": v}

    return rule("ademamix", zeros("m", "slow", "v"), scale, learning_rate, decay=decay)
