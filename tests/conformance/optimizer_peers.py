"""Peers of the optimizers: Optax's parts with one interface, and NumPy where Optax has none."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf

from core.random import Rng

from .in_numpy import in_numpy

SHAPES: dict[str, tuple[int, ...]] = {"net/0/w": (6, 4), "net/0/b": (4,), "net/1/kernel": (2, 2, 3, 5), "scale": ()}


class Peer(NamedTuple):
    """Another implementation: its initial state, one update, and the weights to evaluate."""

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any, Any], tuple[Any, Any]]  # (gradients, state, params, value) -> (params, state)
    shadow: Callable[[Any, Any], Any] | None = None  # (state, params)


def from_optax(transform: optax.GradientTransformation, shadow: Callable[[Any, Any], Any] | None = None) -> Peer:
    transform = optax.with_extra_args_support(transform)

    @in_numpy
    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        updates, state = transform.update(gradients, state, params, value=value)
        return optax.apply_updates(params, updates), state

    return Peer(in_numpy(transform.init), step, shadow)


def _float64() -> Any:
    """Returns a context; older releases of JAX keep it in `experimental`."""
    return jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def in_float64(make: Callable[[], optax.GradientTransformation | Peer]) -> Peer:
    """Runs Optax in float64, for optimizers whose float32 rounding exceeds the difference from ours."""
    with _float64():
        made = make()
        peer = made if isinstance(made, Peer) else from_optax(made)

    def init(params: Any) -> Any:
        with _float64():
            return peer.init(_wide(params))

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        with _float64():
            return peer.step(_wide(gradients), state, _wide(params), value)

    def shadow(state: Any, params: Any) -> Any:
        with _float64():
            return peer.shadow(state, params) if peer.shadow else None

    return Peer(init, step, shadow if peer.shadow else None)


def _wide(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def mask(*paths: str) -> dict[str, bool]:
    """Returns True for all parameters but these."""
    return {path: path not in paths for path in SHAPES}


def scaled(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiplies the updates of these paths by their factors."""
    return optax.stateless(lambda updates, _: {path: factors.get(path, 1.0) * u for path, u in updates.items()})


def each_by_itself(make: Callable[[], optax.GradientTransformation]) -> optax.GradientTransformation:
    return optax.partition({path: make() for path in SHAPES}, {path: path for path in SHAPES})


def by_last_axis(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies a transform whose outputs are on the first axis to kernels with outputs on the last."""

    def swap(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0) if x.ndim > 1 else x, tree)

    def back(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1) if x.ndim > 1 else x, tree)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        updates, state = transform.update(swap(gradients), state, swap(params))
        return back(updates), state

    return optax.GradientTransformation(lambda params: transform.init(swap(params)), update)


def optax_lookahead() -> Peer:
    transform = optax.lookahead(optax.adam(0.01), sync_period=5, slow_step_size=0.5)

    @in_numpy
    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        inner, slow = state
        both = optax.LookaheadParams(fast=params, slow=slow)
        updates, inner = transform.update(gradients, inner, both)
        both = optax.apply_updates(both, updates)
        return both.fast, (inner, both.slow)

    return Peer(
        lambda params: (transform.init(optax.LookaheadParams.init_synced(params)), params),
        step,
        lambda state, params: state[1],
    )


def optax_sam() -> Peer:
    climb = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    transform = optax.contrib.sam(optax.adam(optax.linear_schedule(0.02, 0.0, 20)), climb, sync_period=2)

    @in_numpy
    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        updates, state = transform.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def shadow(state: Any, params: Any) -> Any:
        return params if state.steps_since_sync == 0 else state.cache

    return Peer(transform.init, step, shadow)


def optax_schedule_free() -> Peer:
    rate = optax.linear_schedule(0.0, 0.01, 10)
    base = optax.chain(
        optax.scale_by_rms(decay=0.999, eps=1e-8, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(0.1),
        optax.scale_by_learning_rate(rate),
    )
    # Its weights count updates from one, its steps from zero; here both are the same update's.
    transform = optax.contrib.schedule_free(base, lambda count: rate(count - 1), b1=0.9)
    return from_optax(transform, optax.contrib.schedule_free_eval_params)


def average_of_weights(transform: optax.GradientTransformation, *, traced: bool = True) -> Peer:
    """Averages the weights under gradient descent with `transform`, which Optax intends for gradients."""
    descent = from_optax(optax.sgd(0.1))
    update = in_numpy(transform.update) if traced else transform.update

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        inner, averaging, _ = state
        params, inner = descent.step(gradients, inner, params, value)
        average, averaging = update(params, averaging)
        return params, (inner, averaging, average)

    return Peer(
        lambda params: (descent.init(params), transform.init(params), params), step, lambda state, params: state[2]
    )


def numpy_average(start: int) -> optax.GradientTransformation:
    """Returns the mean of all weights after the first `start`."""

    def update(values: Any, state: Any, params: Any = None) -> Any:
        state = [*state, {path: np.asarray(x, np.float64) for path, x in values.items()}]
        counted = state[start:] or state[-1:]
        return {path: np.mean([x[path] for x in counted], axis=0) for path in values}, state

    return optax.GradientTransformation(lambda params: [], update)


def numpy_power_average(std: float, start: int) -> optax.GradientTransformation:
    """Returns the power-function average of the weights after the first `start`: β = (1 − 1 / t) ** (γ + 1)."""
    (gamma,) = (x.real for x in np.roots([1.0, 7.0, 16.0 - std**-2, 12.0 - std**-2]) if x.real > 0.0)

    def update(values: Any, state: Any, params: Any = None) -> Any:
        count, average = state
        beta = (1.0 - 1.0 / max(count - start + 1, 1)) ** (gamma + 1.0)
        new = {path: np.asarray(x, np.float64) for path, x in values.items()}
        average = {path: beta * average.get(path, 0.0) + (1.0 - beta) * x for path, x in new.items()}
        return average, (count + 1, average)

    return optax.GradientTransformation(lambda params: (0, {}), update)


def numpy_shampoo(rate: float, momentum: float, epsilon: float, root_every: int) -> Peer:
    """Computes in float64, axis by axis, with roots by singular value decomposition."""

    def init(params: Any) -> Any:
        sums = {path: [epsilon * np.eye(size) for size in np.shape(p) or (1,)] for path, p in params.items()}
        return 0, sums, {}, {path: np.zeros(np.shape(p)) for path, p in params.items()}

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        count, sums, roots, velocity = state
        moved = {}
        for path, gradient in gradients.items():
            g = np.atleast_1d(np.asarray(gradient, np.float64))
            direction = g
            for axis in range(g.ndim):
                unfolded = np.moveaxis(g, axis, 0).reshape(g.shape[axis], -1)
                sums[path][axis] = sums[path][axis] + unfolded @ unfolded.T
                if count % root_every == 0:
                    u, s, _ = np.linalg.svd(sums[path][axis])
                    roots[path, axis] = (u * s ** (-0.5 / g.ndim)) @ u.T
                direction = np.moveaxis(np.tensordot(roots[path, axis], direction, (1, axis)), 0, axis)
            velocity[path] = momentum * velocity[path] + direction.reshape(np.shape(gradient))
            moved[path] = params[path] - rate * velocity[path]
        return moved, (count + 1, sums, roots, velocity)

    return Peer(init, step)


def numpy_lbfgs(rate: float, memory_size: int) -> Peer:
    """Computes the inverse Hessian as a dense matrix, by the recursion of BFGS over the stored pairs."""

    def flat(tensors: Any) -> Any:
        return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in tensors.values()])

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        pairs, last = state
        x, g = flat(params), flat(gradients)
        if last is not None:
            s, y = x - last[0], g - last[1]
            if s @ y > 1e-6 * np.sqrt((s @ s) * (y @ y)):
                pairs = [*pairs, (s, y)][-memory_size:]
        newest = pairs[-1] if pairs else None
        gamma = (newest[0] @ newest[1]) / (newest[1] @ newest[1]) if newest else min(1.0, 1.0 / np.sqrt(g @ g))
        inverse = gamma * np.eye(len(x))
        for s, y in pairs:
            turn = np.eye(len(x)) - np.outer(y, s) / (s @ y)
            inverse = turn.T @ inverse @ turn + np.outer(s, s) / (s @ y)
        ends = np.cumsum([np.size(p) for p in params.values()])[:-1]
        moves = dict(zip(params, np.split(-rate * inverse @ g, ends), strict=True))
        moved = {path: np.asarray(p, np.float64) + moves[path].reshape(np.shape(p)) for path, p in params.items()}
        return moved, (pairs, (x, g))

    return Peer(lambda params: ([], None), step)


def numpy_rprop(start: float, largest: float) -> Peer:
    """Takes one weight after the other, by the cases of the paper."""

    def cases(weight: float, gradient: float, before: float, size: float) -> tuple[float, float, float]:
        if gradient * before > 0:
            size = min(1.2 * size, largest)
        elif gradient * before < 0:
            size, gradient = max(0.5 * size, 1e-6), 0.0
        return weight - size * np.sign(gradient), gradient, size

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        new, moved = {}, {}
        for path, p in params.items():
            moved[path], *new[path] = np.vectorize(cases, otypes=[float] * 3)(p, gradients[path], *state[path])
        return moved, new

    return Peer(
        lambda params: {path: [np.zeros(np.shape(p)), np.full(np.shape(p), start)] for path, p in params.items()}, step
    )


def numpy_sophia(rate: float, gamma: float, every: int) -> Peer:
    """Follows the paper's algorithm 3 with the problem's own curvatures; `net/0/b` doesn't decay."""
    from .optimizer_battery import problem  # which imports this file

    def step(gradients: Any, state: Any, params: Any, value: Any) -> Any:
        count, m, h = state
        moved = {}
        for path, g in gradients.items():
            m = {**m, path: 0.96 * m[path] + 0.04 * np.asarray(g, np.float64)}
            if count % every == 0:
                h = {**h, path: 0.99 * h[path] + 0.01 * problem()[1][path]}
            step = np.clip(m[path] / np.maximum(gamma * h[path], 1e-12), -1.0, 1.0)
            decay = 0.0 if path == "net/0/b" else 0.1
            moved[path] = params[path] - rate * (step + decay * params[path])
        return moved, (count + 1, m, h)

    zeros = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    return Peer(lambda params: (0, zeros, zeros), step)


def optax_prodigy(rate: optax.Schedule, d_0: float) -> optax.GradientTransformation:
    """Decays all parameters except `net/0/b`."""
    with_decay, without = (optax.contrib.prodigy(rate, estim_lr0=d_0, weight_decay=w) for w in (0.1, 0.0))

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        updates, new = with_decay.update(gradients, state, params)
        return {**updates, "net/0/b": without.update(gradients, state, params)[0]["net/0/b"]}, new

    return optax.GradientTransformation(with_decay.init, update)


def optax_muon() -> optax.GradientTransformation:
    return optax.partition(
        {"muon": optax.contrib.muon(0.01, weight_decay=0.1), "adamw": optax.adamw(0.003, weight_decay=0.01)},
        {path: "muon" if len(shape) == 2 else "adamw" for path, shape in SHAPES.items()},
    )


def noise_of_random(eta: float, gamma: float, seed: int) -> optax.GradientTransformation:
    """Applies Optax's noise with this project's draws."""
    start = Rng.from_seed(seed).fold("gradient_noise")
    at = tf.function(lambda i: {path: start.fold(i).fold(path).normal(shape) for path, shape in SHAPES.items()})
    by_step = [at(tf.constant(i, tf.int64)) for i in range(50)]
    draws = {path: jnp.stack([drawn[path].numpy() for drawn in by_step]) for path in SHAPES}

    def update(gradients: Any, count: Any, params: Any = None) -> Any:
        deviation = (eta / (count + 1.0) ** gamma) ** 0.5
        return {path: g + deviation * draws[path][count] for path, g in gradients.items()}, count + 1

    return optax.GradientTransformation(lambda params: 0, update)


def sgdr(periods: list[int]) -> Callable[[Any], Any]:
    cycles = [
        {"init_value": 0.1, "peak_value": 0.1, "decay_steps": n, "warmup_steps": 0, "end_value": 0.01} for n in periods
    ]
    return optax.sgdr_schedule(cycles)
