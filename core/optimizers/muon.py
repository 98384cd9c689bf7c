"""Muon."""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_rate, check_size
from core.optimizers.adam import adamw
from core.optimizers.chain import chain
from core.optimizers.groups import partition
from core.optimizers.moments import averages, zeros
from core.optimizers.paths import matching
from core.optimizers.rates import as_dtype, newest_share, rate_at, updates_after, weight_seen
from core.optimizers.transform import Schedule, State, Tensors, Transform, stateful

_QUINTIC = (3.4445, -4.7750, 2.0315)  # a X + b (XXᵀ)X + c (XXᵀ)²X has the steepest rise at zero


def orthogonalise(x: tf.Tensor, steps: int, epsilon: float) -> tf.Tensor:
    """Returns roughly U Vᵀ of X = U S Vᵀ: Newton-Schulz steps push every singular value towards one."""
    rows, columns = x.shape
    if rows > columns:  # the smaller of the two squares is the cheaper one
        return tf.transpose(orthogonalise(tf.transpose(x), steps, epsilon))
    a, b, c = _QUINTIC
    x /= tf.maximum(tf.reduce_max(tf.abs(x)), 1.0)  # of what is large, the squares of the norm would be infinite
    x /= tf.norm(x) + epsilon
    for _ in range(steps):
        square = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
    return x


@gin.configurable
def muon(
    learning_rate: float | Schedule,
    *,
    momentum: float = 0.95,
    nesterov: bool = True,
    newton_schulz_steps: int = 5,
    weight_decay: float | Schedule = 0.0,
    epsilon: float = 1e-8,
    other: Transform | None = None,
    other_for: Sequence[str] = (),
) -> Transform:
    """Follows Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks". Decay reads parameters.

    It trains the matrices (parameters of rank 2). Parameters of another rank, and matrices that a pattern of
    `other_for` matches, such as embeddings and the last layer, are trained by `other`: AdamW at the same learning rate
    unless it is given.

    Nesterov's mix of gradient and average has the corrections of Nadam, as in Optax; Jordan's own code and PyTorch mix
    them by the momentum alone, which differs in the first updates. A matrix [in, out] is scaled by √max(1, out/in).
    """
    check_rate(learning_rate=learning_rate, weight_decay=weight_decay)
    check_fraction(momentum=momentum)
    check_positive(epsilon=epsilon)
    check_size(newton_schulz_steps=newton_schulz_steps)

    def label(params: Mapping[str, Any]) -> dict[str, str]:
        left = matching(other_for, params, argument="other_for")
        return {path: "matrix" if len(p.shape) == 2 and path not in left else "other" for path, p in params.items()}

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        t = updates_after(step)
        m = averages(state["momentum"], gradients, momentum)
        minus_rate, decay = -rate_at(learning_rate, step), rate_at(weight_decay, step)
        # The corrections of Nadam, as in Optax. Only their ratio matters: the norm is divided out.
        of_mean = momentum / weight_seen(momentum, t + 1.0)
        of_gradient = newest_share(t, momentum)
        updates = {}
        for path, g in gradients.items():
            direction = as_dtype(of_mean, g) * m[path] + as_dtype(of_gradient, g) * g if nesterov else m[path]
            rows, columns = g.shape
            # One singular value of one moves an output by as much as its input, whatever the shape.
            direction = max(1.0, columns / rows) ** 0.5 * orthogonalise(direction, newton_schulz_steps, epsilon)
            if callable(weight_decay) or weight_decay > 0.0:
                direction += as_dtype(decay, g) * params[path]
            updates[path] = as_dtype(minus_rate, g) * direction
        return updates, {"momentum": m}

    matrices = stateful("muon", zeros("momentum"), update, learning_rate=learning_rate)
    return partition("muon", label, {"matrix": matrices, "other": chain(other or adamw(learning_rate))})
