"""The optimizers' battery: what a row of the table says, and how it is run and compared with its peer.

`largest_difference(row)` measures what docs/parts.md reports: over 50 updates of a random problem with a matrix, a
vector, a scalar and a kernel of rank 4, the largest difference of any weight over the largest weight.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf

from core.optimizers import Optimizer, Schedule, Transform

from .optimizer_peers import SHAPES, Peer, from_optax

STEPS = 50


@dataclasses.dataclass(frozen=True)
class Row:
    """A part with its options, and a peer that computes the same by other means."""

    part: str
    make: Callable[[], Transform]
    peer: Callable[[], Peer | optax.GradientTransformation]
    peer_name: str
    paper: str
    needs: str = "gradients"
    case: str = ""
    tolerance: float = 1e-6
    xla_tolerance: float = 1e-6  # between the rule compiled and not
    reason: str = ""  # for another tolerance, or for what differs from the paper

    @property
    def id(self) -> str:
        return f"{self.part}: {self.case}" if self.case else self.part


@dataclasses.dataclass(frozen=True)
class ScheduleRow:
    """A schedule and its peer, a function from a count to a rate."""

    part: str
    make: Callable[[], Schedule]
    peer: Callable[[], Callable[[int], Any]]
    peer_name: str
    paper: str = ""
    case: str = ""
    tolerance: float = 1e-6
    reason: str = ""  # for what differs from the paper

    @property
    def id(self) -> str:
        return f"{self.part}: {self.case}" if self.case else self.part


@functools.cache
def problem() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Initial weights, curvatures, noise for each step, and made-up losses that fall and then level off."""
    rng = np.random.default_rng(3)
    start = {path: rng.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}
    curvature = {path: rng.uniform(0.1, 1.0, size=shape).astype(np.float32) for path, shape in SHAPES.items()}
    noise = {path: rng.normal(size=(STEPS, *shape)).astype(np.float32) for path, shape in SHAPES.items()}
    losses = np.exp(-np.arange(STEPS) / 5.0).round(2).astype(np.float32)
    return start, curvature, noise, losses


def gradients_at(params: Any, i: Any) -> dict[str, Any]:
    """Of a quadratic with noise; NumPy, JAX and TensorFlow compute it alike."""
    _, curvature, noise, _ = problem()
    return {path: curvature[path] * params[path] + noise[path][i] for path in SHAPES}


def largest(values: Any) -> float:
    return max(float(np.max(np.abs(x))) for x in values.values())


def trajectory(transform: Transform, *, fused: bool = True) -> list[tuple[Any, Any]]:
    """The weights and their shadow after each update."""
    start, _, _, losses = problem()
    params = {path: tf.Variable(x) for path, x in start.items()}
    optimizer = Optimizer(transform, params)

    @tf.function(autograph=False)
    def update(gradients: Any, value: tf.Tensor) -> Any:
        optimizer.apply(gradients, value=value, fused=fused)
        return optimizer.shadow()

    seen = []
    for i in range(STEPS):
        gradients = gradients_at({path: v.numpy() for path, v in params.items()}, i)
        shadow = update({path: tf.constant(g) for path, g in gradients.items()}, tf.constant(losses[i]))
        read = shadow and {path: x.numpy() for path, x in shadow.items()}
        seen.append(({path: v.numpy() for path, v in params.items()}, read))
    return seen


@functools.cache
def peer_trajectory(row: Row) -> list[tuple[Any, Any]]:
    """The same of the row's peer."""
    start, _, _, losses = problem()
    peer = row.peer()
    peer = peer if isinstance(peer, Peer) else from_optax(peer)
    params, state, seen = start, peer.init(start), []
    for i in range(STEPS):
        gradients = gradients_at({path: np.asarray(x) for path, x in params.items()}, i)
        params, state = peer.step(gradients, state, params, losses[i])
        seen.append((params, peer.shadow and peer.shadow(state, params)))
    return seen


def largest_difference(row: Row | ScheduleRow, *, fused: bool = True) -> float:
    """The figure of a row; a shadow that both sides have counts as weights."""
    if isinstance(row, ScheduleRow):
        schedule, theirs = row.make(), np.asarray(jax.vmap(row.peer())(jnp.arange(STEPS)))
        mine = np.stack([schedule(tf.constant(i, tf.int64)) for i in range(STEPS)])
        return float(np.max(np.abs(mine - theirs)) / np.max(theirs))
    mine, theirs = trajectory(row.make(), fused=fused), peer_trajectory(row)
    return max(
        largest({path: a[path] - np.asarray(b[path]) for path in SHAPES}) / largest(b)
        for both in zip(mine, theirs, strict=True)
        for a, b in zip(*both, strict=True)
        if b is not None
    )


def table(rows: Sequence[Row | ScheduleRow]) -> list[dict[str, str]]:
    """What docs/parts.md says of each row; the difference is the larger of the kernel's and the pure rule's."""
    described = []
    for row in rows:
        seen = [largest_difference(row)]
        if isinstance(row, Row):
            seen.append(largest_difference(row, fused=False))
        described.append(
            {
                "part": row.id,
                "paper": row.paper,
                "needs": row.needs if isinstance(row, Row) else "step",
                "peer": row.peer_name,
                "difference": f"{max(seen):.1e}",
                "note": row.reason,
            }
        )
    return described


class Run:
    """A rule at work on the problem of the rows."""

    def __init__(self, transform: Transform, *, dtype: tf.DType = tf.float32, fused: bool = True):
        start, self.curvature, self.noise, _ = problem()
        paths = [path for path in start if path != "net/1/kernel"]  # to save the time of compiling for it
        self.params = {path: tf.Variable(tf.cast(start[path], dtype)) for path in paths}
        self.optimizer = Optimizer(transform, self.params)
        self.fused = fused

    def update(self, i: tf.Tensor, apply_if: tf.Tensor | None = None, spoil: float = 0.0) -> None:
        gradients = {
            path: tf.cast(self.curvature[path], v.dtype) * v + tf.cast(tf.gather(self.noise[path], i) + spoil, v.dtype)
            for path, v in self.params.items()
        }
        self.optimizer.apply(gradients, value=1.0 / tf.cast(i + 1, tf.float32), apply_if=apply_if, fused=self.fused)

    def graph(self, *, compiled: bool = False) -> Any:
        return tf.function(self.update, jit_compile=compiled, autograph=False)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {**self.params, **self.optimizer.variables}

    def bits(self) -> dict[str, bytes]:
        return {path: v.numpy().tobytes() for path, v in self.variables.items()}

    def numbers(self) -> np.ndarray:
        return np.concatenate([v.numpy().astype(np.float64).ravel() for v in self.params.values()])
