"""PSGD with Kronecker-factored preconditioners."""

import functools
import math
from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_positive, check_rate, check_size
from core.optimizers.clipping import clip_by_norm
from core.optimizers.decay import Decay
from core.optimizers.moments import averages, zeros
from core.optimizers.rates import as_dtype, rate_at, updates_after, weight_seen
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.shampoo import along, at_least_vector, gram
from core.optimizers.sharing import ask, in_shares
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform
from core.random import Rng

_LARGEST_RMS = 1.1  # of an update; a whitened gradient has 1


def annealed(step: tf.Tensor) -> tf.Tensor:
    """Returns the authors' share of updates that move the factors: exp((500 - t) / 1000), from 1 to 0.03."""
    return tf.clip_by_value(tf.exp(0.001 * (500.0 - updates_after(step))), 0.03, 1.0)


def times_factor(x: tf.Tensor, axis: int, factor: tf.Tensor, *, transposed: bool = False) -> tf.Tensor:
    """Multiplies `x` along `axis` by a triangular [n, n] or diagonal [n] factor Q, or by Qᵀ."""
    if len(factor.shape) == 2:
        return along(x, axis, tf.transpose(factor) if transposed else factor)
    return x * _on_axis(factor, axis, len(x.shape))


def over_factor(x: tf.Tensor, axis: int, factor: tf.Tensor) -> tf.Tensor:
    """Multiplies `x` along `axis` by Q⁻ᵀ for a triangular [n, n] or diagonal [n] factor Q."""
    if len(factor.shape) == 1:
        return x / _on_axis(factor, axis, len(x.shape))
    order = [axis, *(i for i in range(len(x.shape)) if i != axis)]
    ahead = tf.transpose(x, order)
    flat = tf.reshape(ahead, [ahead.shape[0], -1])
    solved = tf.reshape(tf.linalg.triangular_solve(factor, flat, lower=False, adjoint=True), ahead.shape)
    return tf.transpose(solved, [order.index(i) for i in range(len(order))])


def _on_axis(factor: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
    return tf.reshape(factor, [-1 if i == axis else 1 for i in range(rank)])


def least_norm(a: tf.Tensor) -> tf.Tensor:
    """Returns a close lower bound of the spectral norm of a symmetric matrix [n, n], by two products with a column."""
    largest = tf.maximum(tf.reduce_max(tf.abs(a)), 1e-30)
    a /= largest
    x = tf.linalg.matvec(a, tf.gather(a, tf.argmax(tf.reduce_sum(tf.square(a), 0)), axis=1))
    return largest * tf.norm(tf.linalg.matvec(a, x / tf.norm(x)))


def next_factors(factors: list[tf.Tensor], g: tf.Tensor, v: tf.Tensor, rate: Rate) -> list[tf.Tensor]:
    """Moves the factors Q of a gradient `g` towards E[Q g (Q g)ᵀ] = I, given normal noise `v` like `g`."""
    a, b, moved = g, v, []
    for axis, factor in enumerate(factors):
        a, b = times_factor(a, axis, factor), over_factor(b, axis, factor)
    for axis, factor in enumerate(factors):
        if len(factor.shape) == 2:
            of_a, of_b = gram(a, axis), gram(b, axis)
            gradient = tf.matmul(tf.linalg.band_part(of_a - of_b, 0, -1), factor)
            norm = least_norm(of_a + of_b)
        else:
            others = [i for i in range(len(a.shape)) if i != axis]
            of_a, of_b = tf.reduce_sum(tf.square(a), others), tf.reduce_sum(tf.square(b), others)
            gradient, norm = (of_a - of_b) * factor, tf.reduce_max(of_a + of_b)
        moved.append(factor - rate / norm * gradient)
    return moved


@gin.configurable
@schedulable
def psgd_kron(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    beta_1: float = 0.9,
    factor_rate: float = 0.1,
    factor_share: float | Schedule | None = None,
    max_size: int = 8192,
    seed: int = 0,
    no_decay: Sequence[str] = (),
    sharded: bool = False,
) -> Transform:
    """Follows Li (2015), "Preconditioned stochastic gradient descent", and Li (2022), as the authors' `kron` does.

    The direction is P m̂, scaled to a root mean square of at most 1.1, where m̂ is Adam's first moment. P = QᵀQ, and Q is
    the Kronecker product of a triangular factor [n, n] for each axis. With A = Q m̂ and B = Q⁻ᵀ v, v normal, a factor
    becomes Q - μ / ‖A Aᵀ + B Bᵀ‖ · triu(A Aᵀ - B Bᵀ) Q, with A and B unfolded on its axis. μ is `factor_rate`.

    The factors move in a share `factor_share` of the updates, which `seed` and the step choose. By default they move in
    the first 500 updates, then in exp((500 - t) / 1000) of them, and at last in 3 %. Factors of vectors, scalars and
    axes longer than `max_size` are diagonal. With `sharded`, each replica moves a part of the factors, and gets the
    others in each update.
    """
    share = annealed if factor_share is None else factor_share
    check_rate(weight_decay=weight_decay, factor_share=share)
    check_fraction(beta_1=beta_1)
    check_positive(factor_rate=factor_rate)
    check_size(max_size=max_size)
    decay = Decay(weight_decay, no_decay)

    def init(params: Tensors) -> State:
        if sharded:
            ask("psgd_kron")
        state = {slot: dict(values) for slot, values in zeros("m")(params).items()}
        for path, param in params.items():
            p = at_least_vector(param)
            for axis, size in enumerate(p.shape):
                triangular = len(p.shape) > 1 and 1 < size <= max_size
                start = tf.eye(int(size), dtype=p.dtype) if triangular else tf.ones([size], p.dtype)
                state.setdefault(f"factor_{axis}", {})[path] = start
        return state

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        rng = Rng.from_seed(seed).fold("psgd_kron").fold(step)
        due = rng.fold("due").uniform([]) < rate_at(share, step)
        new: dict[str, dict[str, tf.Tensor]] = {slot: {} for slot in state}
        new["m"] = averages(state["m"], gradients, beta_1)
        seen = weight_seen(beta_1, updates_after(step))
        directions: dict[str, tf.Tensor] = {}
        means = {path: at_least_vector(new["m"][path] / as_dtype(seen, g)) for path, g in gradients.items()}
        known = {path: [state[f"factor_{i}"][path] for i in range(len(g.shape))] for path, g in means.items()}

        def moved(paths: Sequence[str]) -> dict[str, list[tf.Tensor]]:
            found = {}
            for path in paths:
                g, factors = means[path], known[path]
                v = tf.cast(rng.fold(path).normal(g.shape), g.dtype)
                fresh = functools.partial(next_factors, factors, g, v, factor_rate)
                found[path] = tf.cond(due, fresh, lambda factors=factors: factors)
            return found

        def cost(path: str) -> float:
            sizes, of_factors = means[path].shape, [math.prod(factor.shape) for factor in known[path]]
            return float(sum(math.prod(sizes) / n * f + f**1.5 for n, f in zip(sizes, of_factors, strict=True)))

        costs = {path: cost(path) for path in means}
        factors_of = in_shares(moved, costs, known, sharded=sharded)
        for path, gradient in gradients.items():
            g = direction = means[path]
            for axis, factor in enumerate(factors_of[path]):
                new[f"factor_{axis}"][path] = factor
                direction = times_factor(times_factor(direction, axis, factor), axis, factor, transposed=True)
            clip = clip_by_norm(_LARGEST_RMS * math.prod(g.shape) ** 0.5)
            clipped, _ = clip.update({path: tf.reshape(direction, gradient.shape)}, {}, params, step=step)
            directions |= clipped
        return scale_by_rate(decay.add(directions, params, step), rate), new

    return rule("psgd_kron", init, scale, learning_rate, decay=decay)
