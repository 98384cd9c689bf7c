"""SOAP."""

import functools
from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core.arguments import check_rate, check_size
from core.choice import nan, one_of
from core.optimizers.decay import Decay
from core.optimizers.moments import adam_scalars, check_adam, moved, zeros
from core.optimizers.rates import as_dtype
from core.optimizers.rule import rule
from core.optimizers.scheduled import schedulable
from core.optimizers.shampoo import along, gram
from core.optimizers.sharing import ask, in_shares
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform

_BASIS = "basis_"  # and the axis: a slot's name


def is_basis(slot: str) -> bool:
    """Says whether the slot named `slot`, such as "soap/basis_0", holds eigenvectors."""
    return slot.rpartition("/")[2].startswith(_BASIS)


def eigenvectors(total: tf.Tensor) -> tf.Tensor:
    """Returns the eigenvectors of `total` [n, n] as columns [n, n], those of large eigenvalues first."""
    # `eigh` raises on non-finite numbers; NaN shows in the next update instead.
    finite = tf.reduce_all(tf.math.is_finite(total))
    _, vectors = tf.linalg.eigh(one_of(finite, total, tf.eye(total.shape[0], dtype=total.dtype)))
    return one_of(finite, tf.reverse(vectors, [1]), tf.fill(total.shape, nan(total.dtype)))


def closer(total: tf.Tensor, basis: tf.Tensor) -> tf.Tensor:
    """Moves `basis` [n, n] towards the eigenvectors of `total` [n, n]: one step of orthogonal iteration."""
    return tf.linalg.qr(tf.matmul(total, basis)).q


def turned(x: tf.Tensor, bases: Mapping[int, tf.Tensor], *, back: bool = False) -> tf.Tensor:
    """Returns `x` in the coordinates of `bases` [n, n], by axis; with `back`, from these in its own."""
    for axis, basis in bases.items():
        x = along(x, axis, basis if back else tf.transpose(basis))
    return x


@gin.configurable
@schedulable
def soap(
    learning_rate: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.01,
    beta_1: float = 0.95,
    beta_2: float = 0.95,
    epsilon: float = 1e-8,
    basis_every: int = 10,
    max_size: int = 10_000,
    no_decay: Sequence[str] = (),
    sharded: bool = False,
) -> Transform:
    """Follows Vyas et al. (2024), "SOAP: improving and stabilizing Shampoo using Adam".

    A gradient G [m, n] has averages L of G Gᵀ and R of Gᵀ G (β2). Adam runs in their eigenvectors: with G' = QLᵀ G QR
    and averages M of G (β1) and V of G'² (β2), the direction is QL (QLᵀ M̂ QR / (√V̂ + ε)) QRᵀ. QL and QR come from
    eigendecompositions in the first update, and each `basis_every` updates from one step QR(L QL).

    As in the authors' code, the first update only measures L and R. Each axis of a kernel has its matrix. Vectors,
    scalars and axes longer than `max_size` keep their coordinates. Where no gradient has reached yet, the basis is
    arbitrary, so results for other numbers of replicas differ by more than rounding. With `sharded`, each replica
    computes a part of the bases, and gets the others in each update.
    """
    check_rate(weight_decay=weight_decay)
    check_adam(beta_1, beta_2, epsilon)
    check_size(basis_every=basis_every, max_size=max_size)
    decay = Decay(weight_decay, no_decay)

    def axes(p: tf.Tensor) -> list[int]:
        return [axis for axis, size in enumerate(p.shape) if 1 < size <= max_size] if len(p.shape) > 1 else []

    def init(params: Tensors) -> State:
        if sharded:
            ask("soap")
        state = {slot: dict(values) for slot, values in zeros("m", "v")(params).items()}
        for path, p in params.items():
            for axis in axes(p):
                state.setdefault(f"gram_{axis}", {})[path] = tf.zeros([p.shape[axis]] * 2, p.dtype)
                state.setdefault(f"{_BASIS}{axis}", {})[path] = tf.eye(int(p.shape[axis]), dtype=p.dtype)
        return state

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        first, due = tf.equal(step, 0), tf.equal(step % basis_every, 0)
        t = tf.cast(tf.maximum(step, 1), tf.float32)  # the first update doesn't count
        alpha, epsilon_hat = adam_scalars(t, beta_1, beta_2, epsilon, -rate)
        new: dict[str, dict[str, tf.Tensor]] = {slot: {} for slot in state}
        updates, totals, known = {}, dict[str, tf.Tensor](), dict[str, tf.Tensor]()
        for path, g in gradients.items():
            bases = {axis: state[f"{_BASIS}{axis}"][path] for axis in axes(g)}
            old_m, old_v = state["m"][path], state["v"][path]
            m = moved(old_m, g, 1.0 - beta_1)
            v = moved(old_v, tf.square(turned(g, bases)), 1.0 - beta_2)
            direction = turned(m, bases) / (tf.sqrt(v) + as_dtype(epsilon_hat, v))
            updates[path] = as_dtype(alpha, v) * turned(direction, bases, back=True)
            new["m"][path], new["v"][path] = one_of(first, old_m, m), one_of(first, old_v, v)
            for axis, basis in bases.items():
                total = moved(state[f"gram_{axis}"][path], gram(g, axis), 1.0 - beta_2)
                new[f"gram_{axis}"][path] = totals[f"{_BASIS}{axis}/{path}"] = total
                known[f"{_BASIS}{axis}/{path}"] = basis

        def next_bases(keys: Sequence[str]) -> Tensors:
            found = {}
            for key in keys:
                again = functools.partial(closer, totals[key], known[key])
                fresh = functools.partial(tf.cond, first, functools.partial(eigenvectors, totals[key]), again)
                found[key] = tf.cond(due, fresh, lambda key=key: known[key])
            return found

        costs = {key: float(x.shape[0]) ** 3 for key, x in known.items()}
        for key, basis in in_shares(next_bases, costs, known, sharded=sharded).items():
            slot, _, path = key.partition("/")
            new[slot][path] = basis
        decayed = decay.add(updates, params, step, factor=-rate)
        # A product, so that NaN stays.
        return {path: u * tf.cast(~first, u.dtype) for path, u in decayed.items()}, new

    return rule("soap", init, scale, learning_rate, decay=decay)
