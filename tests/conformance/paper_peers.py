"""Peers of optimizers that Optax lacks or writes otherwise: the papers' algorithms in JAX or NumPy, in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf

from core.random import Rng

from .optimizer_peers import SHAPES, Peer


def by_leaf(function: Any, *trees: Any) -> Any:
    return jax.tree.map(function, *trees)


def paper_adan(
    rate: float, b1: float, b2: float, b3: float, epsilon: float, decay: float
) -> optax.GradientTransformation:
    """Follows Algorithm 1 of Xie et al. (2022), with 1 - β for the paper's β and AdamW's decay."""

    def init(params: Any) -> Any:
        nothing = by_leaf(jnp.zeros_like, params)
        return 0, nothing, nothing, nothing, nothing

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        count, m, v, n, last = state
        d = by_leaf(lambda g, old: (g - old) * (count > 0), gradients, last)
        m = by_leaf(lambda x, g: b1 * x + (1 - b1) * g, m, gradients)
        v = by_leaf(lambda x, y: b2 * x + (1 - b2) * y, v, d)
        n = by_leaf(lambda x, g, y: b3 * x + (1 - b3) * (g + b2 * y) ** 2, n, gradients, d)
        t = count + 1

        def moved(x: Any, y: Any, z: Any, p: Any) -> Any:
            ahead = x / (1 - b1**t) + b2 * y / (1 - b2**t)
            return -rate * (ahead / (jnp.sqrt(z / (1 - b3**t)) + epsilon) + decay * p)

        return by_leaf(moved, m, v, n, params), (t, m, v, n, gradients)

    return optax.GradientTransformation(init, update)


def paper_mars(gamma: float, b1: float, inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Follows the approximate form of Algorithm 1 of Yuan et al. (2024) before `inner`."""

    def init(params: Any) -> Any:
        return 0, by_leaf(jnp.zeros_like, params), inner.init(params)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        count, last, own = state

        def corrected(g: Any, old: Any) -> Any:
            c = g + gamma * b1 / (1 - b1) * (g - old) * (count > 0)
            return c / jnp.maximum(1.0, jnp.linalg.norm(c.ravel()))

        updates, own = inner.update(by_leaf(corrected, gradients, last), own, params)
        return updates, (count + 1, gradients, own)

    return optax.GradientTransformation(init, update)


def paper_cautious(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Follows the code of Liang et al. (2024)."""

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        updates, state = inner.update(gradients, state, params)

        def masked(u: Any, g: Any) -> Any:
            agrees = (u * g < 0).astype(u.dtype)
            return u * agrees / jnp.maximum(jnp.mean(agrees), 1e-3)

        return by_leaf(masked, updates, gradients), state

    return optax.GradientTransformation(inner.init, update)


def paper_cautious_decay(
    rate: Any, decay: float, decays: dict[str, bool], inner: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Follows Algorithm 1 of Chen et al. (2025)."""

    def init(params: Any) -> Any:
        return 0, inner.init(params)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        count, own = state
        updates, own = inner.update(gradients, own, params)
        eta = rate(count)
        decayed = by_leaf(lambda u, p, on: u - eta * decay * on * (u * p <= 0) * p, updates, params, decays)
        return decayed, (count + 1, own)

    return optax.GradientTransformation(init, update)


def paper_muon(
    rate: float,
    polynomials: Any,
    momentum: Callable[[Any], Any],
    neuron_beta: float | None,
    kernels: bool,
    other: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Follows Jordan et al. (2024), Algorithm 1 of Li et al. (2025), and `other` for what isn't a matrix."""

    def is_matrix(x: Any) -> bool:
        return x.ndim == 2 or (kernels and x.ndim > 2)

    def matrices(values: Any) -> dict[str, Any]:
        return {path: x.reshape(-1, x.shape[-1]) for path, x in values.items() if is_matrix(x)}

    def rest(values: Any) -> dict[str, Any]:
        return {path: x for path, x in values.items() if not is_matrix(x)}

    def orthogonal(x: Any) -> Any:
        x = x / jnp.linalg.norm(x)
        for a, b, c in polynomials:
            x = a * x + (b * x @ x.T + c * (x @ x.T) @ (x @ x.T)) @ x
        return x

    def init(params: Any) -> Any:
        of = matrices(params)
        return (
            0,
            by_leaf(jnp.zeros_like, of),
            {path: jnp.zeros(x.shape[1]) for path, x in of.items()},
            other.init(rest(params)),
        )

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        count, m, v, own = state
        updates, own = other.update(rest(gradients), own, rest(params))
        beta, t, new_m, new_v = momentum(count), count + 1, {}, {}
        for path, g in matrices(gradients).items():
            new_m[path] = beta * m[path] + (1 - beta) * g
            ahead = beta * new_m[path] / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
            o, new_v[path] = orthogonal(ahead), v[path]
            if neuron_beta is not None:
                new_v[path] = neuron_beta * v[path] + (1 - neuron_beta) * jnp.mean(o**2, 0)
                even = o / jnp.sqrt(new_v[path])
                o = even * jnp.linalg.norm(o) / jnp.linalg.norm(even)
            gain = max(1.0, g.shape[1] / g.shape[0]) ** 0.5
            updates[path] = -rate * gain * o.reshape(params[path].shape)
        return updates, (t, new_m, new_v, own)

    return optax.GradientTransformation(init, update)


def unfolded(x: Any, axis: int) -> Any:
    """Returns `x` as a matrix with the slices along `axis` as rows."""
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def along(x: Any, axis: int, matrix: Any) -> Any:
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def numpy_soap(rate: float, beta: float, epsilon: float, every: int, max_size: int, decay: float) -> Peer:
    """Follows Algorithms 3 and 4 of Vyas et al. (2024); the first update only measures, as in the authors' code."""

    def init(params: Any) -> Any:
        return 0, {path: (np.zeros(np.shape(p)), np.zeros(np.shape(p)), {}, {}) for path, p in params.items()}

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        count, slots = state
        moved, new = {}, {}
        for path, gradient in gradients.items():
            g, p = np.asarray(gradient, np.float64), np.asarray(params[path], np.float64)
            m, v, totals, bases = slots[path]
            axes = [axis for axis, n in enumerate(g.shape) if g.ndim > 1 and 1 < n <= max_size]

            def turned(x: Any, back: bool = False, bases: Any = bases) -> Any:
                for axis, q in bases.items():
                    x = along(x, axis, q if back else q.T)
                return x

            if count:
                m, v = beta * m + (1 - beta) * g, beta * v + (1 - beta) * turned(g) ** 2
                seen = 1 - beta**count
                p = p - rate * (turned(turned(m / seen) / (np.sqrt(v / seen) + epsilon), back=True) + decay * p)
            totals = {
                axis: beta * totals.get(axis, 0) + (1 - beta) * unfolded(g, axis) @ unfolded(g, axis).T for axis in axes
            }
            if count == 0:
                bases = {axis: np.linalg.eigh(total)[1][:, ::-1] for axis, total in totals.items()}
            elif count % every == 0:
                bases = {axis: np.linalg.qr(total @ bases[axis])[0] for axis, total in totals.items()}
            moved[path], new[path] = p, (m, v, totals, bases)
        return moved, (count + 1, new)

    return Peer(init, step)


def numpy_kron(rate: float, beta: float, share: float, max_size: int, steps: int) -> Peer:
    """Follows the authors' `kron` by explicit Kronecker products, on this project's draws."""
    start = Rng.from_seed(0).fold("psgd_kron")

    @tf.function(autograph=False)
    def drawn(i: tf.Tensor) -> Any:
        rng = start.fold(i)
        return rng.fold("due").uniform([]), {
            path: rng.fold(path).normal(shape or [1]) for path, shape in SHAPES.items()
        }

    draws = [drawn(tf.constant(i, tf.int64)) for i in range(steps)]

    def init(params: Any) -> Any:
        return 0, {
            path: (np.zeros(np.shape(p)), [np.eye(n) for n in np.shape(p) or (1,)]) for path, p in params.items()
        }

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        count, slots = state
        due, noise = draws[count]
        moved, new = {}, {}
        for path, gradient in gradients.items():
            m, factors = slots[path]
            m = beta * m + (1 - beta) * np.asarray(gradient, np.float64)
            g = np.atleast_1d(m / (1 - beta ** (count + 1)))
            if float(due) < share:
                factors = _next_factors(factors, g, np.asarray(noise[path], np.float64), max_size)
            whole = _kron(factors)
            direction = (whole.T @ whole @ g.ravel()).reshape(np.shape(gradient))
            direction *= min(1.0, 1.1 / np.sqrt(np.mean(direction**2)))
            moved[path], new[path] = params[path] - rate * direction, (m, factors)
        return moved, (count + 1, new)

    return Peer(init, step)


def _kron(factors: Any) -> Any:
    whole = np.eye(1)
    for factor in factors:
        whole = np.kron(whole, factor)
    return whole


def _next_factors(factors: Any, g: Any, v: Any, max_size: int) -> Any:
    whole = _kron(factors)
    a = (whole @ g.ravel()).reshape(g.shape)
    b = np.linalg.solve(whole.T, v.ravel()).reshape(g.shape)
    moved = []
    for axis, q in enumerate(factors):
        of_a, of_b = (unfolded(x, axis) @ unfolded(x, axis).T for x in (a, b))
        if g.ndim > 1 and 1 < g.shape[axis] <= max_size:
            column = (of_a + of_b)[:, np.argmax(np.sum((of_a + of_b) ** 2, 0))]
            x = (of_a + of_b) @ column
            norm = np.linalg.norm((of_a + of_b) @ x) / np.linalg.norm(x)
            moved.append(q - 0.1 / norm * np.triu(of_a - of_b) @ q)
        else:
            norm = np.max(np.diag(of_a + of_b))
            moved.append(q - 0.1 / norm * np.diag(np.diag(of_a - of_b)) @ q)
    return moved
