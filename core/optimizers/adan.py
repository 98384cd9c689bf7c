"""Adan."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_rate
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, changes, check_adam, zeros
from core.optimizers.rates import as_dtype, updates_after, weight_seen
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def adan(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.98,
    beta_2: float = 0.92,
    beta_3: float = 0.99,
    epsilon: float = 1e-8,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows Xie et al. (2022), "Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models".

    With averages m of g, v of d = g - (last g), and n of (g + β2 d)², the direction is (m + β2 v) / (√n + ε). All three
    are bias-corrected. d is zero in the first update. A β here is 1 - β of the paper.

    Decay is AdamW's. The paper divides by 1 + ηλ instead. Optax has 1 - β2 where the paper has β2.
    """
    check_rate(weight_decay=weight_decay)
    check_adam(beta_1, beta_2, epsilon)
    check_fraction(beta_3=beta_3)
    decay = Decay(weight_decay, no_decay)

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        d = changes(gradients, state["gradient"], step)
        m, v = averages(state["m"], gradients, beta_1), averages(state["v"], d, beta_2)
        n = averages(state["n"], {path: tf.square(g + beta_2 * d[path]) for path, g in gradients.items()}, beta_3)
        t = updates_after(step)
        root = tf.sqrt(weight_seen(beta_3, t))
        of_m, of_v = -rate * root / weight_seen(beta_1, t), -rate * beta_2 * root / weight_seen(beta_2, t)
        updates = {
            path: (as_dtype(of_m, x) * x + as_dtype(of_v, x) * v[path])
            / (tf.sqrt(n[path]) + as_dtype(epsilon * root, x))
            for path, x in m.items()
        }
        new = {"m": m, "v": v, "n": n, "gradient": dict(gradients)}
        return decay.add(updates, params, step, factor=-rate), new

    return rule("adan", zeros("m", "v", "n", "gradient"), scale, learning_rate, decay=decay)
