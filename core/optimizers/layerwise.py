"""Rules for large batches, which give each layer a rate of its own by a trust ratio: LARS and LAMB."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_rate
from core.optimizers.moments import averages, check_adam, squares, zeros
from core.optimizers.norms import measured
from core.optimizers.paths import matching
from core.optimizers.rates import as_dtype, rate_at, updates_after, weight_seen
from core.optimizers.transform import Schedule, State, Tensors, Transform, stateful


def trust_ratios(
    params: Tensors, directions: Tensors, coefficient: float = 1.0
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Returns by path a ratio, and what it multiplies: the direction, over a unit where its norm might be infinite.

    The product is η ‖θ‖ / ‖u‖ times u, or u where either norm is zero: a parameter at zero would never leave it.
    """
    if not directions:
        return {}
    found = measured([x for path, direction in directions.items() for x in (params[path], direction)])
    ratios = {}
    for path, (_, size, size_unit), (over, norm, unit) in zip(directions, found[::2], found[1::2], strict=True):
        ratio = coefficient * tf.math.divide_no_nan(size_unit * size, norm)
        ratios[path] = tf.where((size > 0.0) & (norm > 0.0), ratio, unit), over
    return ratios


@gin.configurable
def lamb(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    no_decay: Sequence[str] = (),
) -> Transform:
    """Follows You et al. (2020), "Large batch optimization for deep learning: training BERT in 76 minutes".

    Reads parameters. The norm of the weights is taken as it is: the paper's φ, which may bound it, is the identity.
    """
    check_adam(learning_rate, beta_1, beta_2, epsilon)
    check_rate(weight_decay=weight_decay)

    def init(params: Tensors) -> State:
        matching(no_decay, params, argument="no_decay")
        return zeros("m", "v")(params)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        t, kept = updates_after(step), matching(no_decay, params, argument="no_decay")
        m = averages(state["m"], gradients, beta_1)
        v = averages(state["v"], squares(gradients), beta_2)
        correction = tf.sqrt(weight_seen(beta_2, t))
        alpha, epsilon_hat = correction / weight_seen(beta_1, t), epsilon * correction
        minus_rate, decay = -rate_at(learning_rate, step), rate_at(weight_decay, step)
        directions = {}
        for path, p in params.items():
            directions[path] = as_dtype(alpha, p) * m[path] / (tf.sqrt(v[path]) + as_dtype(epsilon_hat, p))
            if path not in kept:
                directions[path] += as_dtype(decay, p) * p
        ratios = trust_ratios(params, directions)
        updates = {path: as_dtype(minus_rate, u) * ratio * u for path, (ratio, u) in ratios.items()}
        return updates, {"m": m, "v": v}

    return stateful("lamb", init, update, learning_rate=learning_rate)


@gin.configurable
def lars(
    learning_rate: float | Schedule,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float | Schedule = 0.0,
    trust_coefficient: float = 1e-3,
    plain: Sequence[str] = (),
) -> Transform:
    """Follows You et al. (2017), "Large batch training of convolutional networks". Reads parameters.

    Parameters that a pattern of `plain` matches (biases and scales, as a rule) get neither the ratio nor the decay.

    As in Optax, the ratio divides by the norm of gradient and decay together, ‖g + λθ‖; the paper, by ‖g‖ + λ‖θ‖. The
    rate is inside the momentum, as in the paper: under a schedule, what is on its way keeps the rate it began with.
    """
    check_rate(learning_rate=learning_rate, weight_decay=weight_decay)
    check_fraction(momentum=momentum)
    check_positive(trust_coefficient=trust_coefficient)

    def init(params: Tensors) -> State:
        matching(plain, params, argument="plain")
        return zeros("momentum")(params)

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        minus_rate, decay = -rate_at(learning_rate, step), rate_at(weight_decay, step)
        as_they_are = matching(plain, params, argument="plain")
        decayed = {
            path: gradients[path] + as_dtype(decay, p) * p for path, p in params.items() if path not in as_they_are
        }
        ratios = trust_ratios(params, decayed, trust_coefficient)
        directions = {**gradients, **{path: u * ratio for path, (ratio, u) in ratios.items()}}
        steps = {path: as_dtype(minus_rate, direction) * direction for path, direction in directions.items()}
        sums = {path: momentum * state["momentum"][path] + s for path, s in steps.items()}
        ahead = {path: momentum * sums[path] + s for path, s in steps.items()} if nesterov else sums
        return ahead, {"momentum": sums}

    return stateful("lars", init, update, learning_rate=learning_rate)
