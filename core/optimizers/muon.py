"""Muon."""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_rate, check_size
from core.optimizers.adam import adamw
from core.optimizers.chain import chain
from core.optimizers.decay import Decay
from core.optimizers.groups import partition
from core.optimizers.moments import averages, look_ahead, zeros
from core.optimizers.paths import matching
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform

_QUINTIC = (3.4445, -4.7750, 2.0315)  # a X + b (XXᵀ)X + c (XXᵀ)²X has the steepest rise at zero


def orthogonalise(x: tf.Tensor, steps: int, epsilon: float) -> tf.Tensor:
    """Returns about U Vᵀ for x = U S Vᵀ: each of `steps` Newton-Schulz steps moves the singular values towards one."""
    rows, columns = x.shape
    if rows > columns:  # the smaller of the two squares is cheaper
        return tf.transpose(orthogonalise(tf.transpose(x), steps, epsilon))
    a, b, c = _QUINTIC
    x /= tf.maximum(tf.reduce_max(tf.abs(x)), 1.0)  # the squares of large values would overflow in the norm
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
    slots: str = "float32",
) -> Transform:
    """Follows Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks". Decay reads parameters.

    Muon trains the matrices (parameters of rank 2). `other` trains parameters of another rank, and matrices that match
    a pattern of `other_for`, such as embeddings and the last layer. `other` is AdamW at the same rate by default,
    with the same `slots`; another `other` has its own.

    As in Optax, the Nesterov direction uses Nadam's bias corrections. Jordan's code and PyTorch use none, so the first
    updates differ. The update of a matrix [in, out] is scaled by √max(1, out/in).
    """
    check_rate(weight_decay=weight_decay)
    check_fraction(momentum=momentum)
    check_positive(epsilon=epsilon)
    check_size(newton_schulz_steps=newton_schulz_steps)

    decay = Decay(weight_decay)

    def label(params: Mapping[str, Any]) -> dict[str, str]:
        left = matching(other_for, params, argument="other_for")
        return {path: "matrix" if len(p.shape) == 2 and path not in left else "other" for path, p in params.items()}

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        m = averages(state["momentum"], gradients, momentum)
        # The corrections of Nadam, as in Optax. Only their ratio matters: the norm is divided out.
        directions = look_ahead(m, gradients, step, momentum) if nesterov else dict(m)
        for path, g in gradients.items():
            rows, columns = g.shape
            # A singular value of one then moves an output by as much as its input, for every shape.
            gain = max(1.0, columns / rows) ** 0.5
            directions[path] = gain * orthogonalise(directions[path], newton_schulz_steps, epsilon)
        return scale_by_rate(decay.add(directions, params, step), rate), {"momentum": m}

    matrices = rule("muon", zeros("momentum"), scale, learning_rate, decay=decay, slots=slots)
    return partition("muon", label, {"matrix": matrices, "other": chain(other or adamw(learning_rate, slots=slots))})
