"""Shampoo."""

import functools

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_size
from core.optimizers.moments import decaying_sums, zeros
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


def at_least_vector(x: tf.Tensor) -> tf.Tensor:
    """Returns `x`; a scalar becomes a vector of one element."""
    return x if len(x.shape) else tf.reshape(x, [1])


def gram(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns G Gᵀ, where the rows of G are the slices of `x` along `axis`."""
    others = [i for i in range(len(x.shape)) if i != axis]
    return tf.tensordot(x, x, [others, others])


def inverse_root(matrix: tf.Tensor, order: int) -> tf.Tensor:
    """Returns `matrix ** (-1 / order)`, computed in float64: float32 loses small eigenvalues, which matter most."""
    wide = tf.cast(matrix, tf.float64)
    # `eigh` raises on non-finite numbers. The caller must drop such an update, so its result doesn't matter.
    finite = tf.reduce_all(tf.math.is_finite(wide))
    values, vectors = tf.linalg.eigh(tf.where(finite, wide, tf.eye(matrix.shape[0], dtype=tf.float64)))
    # Every eigenvalue of a sum of squares is positive, except for float32's rounding in the sum.
    values = tf.maximum(values, values[-1] * 1e-9)
    return tf.cast(tf.matmul(vectors * values ** (-1.0 / order), vectors, transpose_b=True), matrix.dtype)


def along(x: tf.Tensor, axis: int, matrix: tf.Tensor) -> tf.Tensor:
    """Multiplies `x` by `matrix` along `axis`, and returns a tensor of the same shape."""
    order = [axis, *(i for i in range(len(x.shape)) if i != axis)]
    applied = tf.tensordot(matrix, x, [[1], [axis]])
    return tf.transpose(applied, [order.index(i) for i in range(len(order))])


@gin.configurable
@schedulable
def shampoo(
    learning_rate: float | Schedule,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-4,
    root_every: int = 1,
    max_size: int = 1024,
) -> Transform:
    """Follows Gupta et al. (2018), "Shampoo: preconditioned stochastic tensor optimization".

    Each axis of a parameter of rank k has a sum of Gram matrices, which starts at ε I. The gradient is multiplied by
    the sum's power -1/(2k), which is recomputed every `root_every` updates. Axes longer than `max_size` are skipped. A
    scalar counts as a vector of one element.
    """
    check_fraction(momentum=momentum)
    check_positive(epsilon=epsilon)
    check_size(root_every=root_every, max_size=max_size)

    def axes(p: tf.Tensor) -> list[int]:
        return [axis for axis, size in enumerate(p.shape) if size <= max_size]

    def init(params: Tensors) -> State:
        state = {slot: dict(values) for slot, values in zeros("momentum")(params).items()}
        for path, param in params.items():
            p = at_least_vector(param)
            for axis in axes(p):
                start = tf.eye(int(p.shape[axis]), dtype=p.dtype)
                state.setdefault(f"gram_{axis}", {})[path] = epsilon * start
                state.setdefault(f"root_{axis}", {})[path] = epsilon ** (-0.5 / len(p.shape)) * start
        return state

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        due = tf.equal(step % root_every, 0)
        new: dict[str, dict[str, tf.Tensor]] = {slot: {} for slot in state}
        directions = {}
        for path, gradient in gradients.items():
            g = direction = at_least_vector(gradient)
            for axis in axes(g):
                total = new[f"gram_{axis}"][path] = state[f"gram_{axis}"][path] + gram(g, axis)
                root = state[f"root_{axis}"][path]
                fresh = functools.partial(inverse_root, total, 2 * len(g.shape))
                root = fresh() if root_every == 1 else tf.cond(due, fresh, lambda root=root: root)
                new[f"root_{axis}"][path] = root
                direction = along(direction, axis, root)
            directions[path] = tf.reshape(direction, gradient.shape)
        _, new["momentum"] = decaying_sums(state["momentum"], directions, momentum)
        return scale_by_rate(new["momentum"], rate), new

    return rule("shampoo", init, scale, learning_rate)
