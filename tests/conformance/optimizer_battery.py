"""The checks of the optimizers: the rows of the table, and their comparison with peers.

`table(rows)` measures what docs/parts.md reports: over 50 updates of a random problem with a matrix, a vector, a scalar
and a kernel of rank 4, the largest difference of any weight over the largest weight. Tests take fewer updates.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
import tensorflow as tf

from core.optimizers import Optimizer, Schedule, Transform

from .in_numpy import in_numpy
from .optimizer_peers import SHAPES, Peer, from_optax

STEPS = 50


@dataclasses.dataclass(frozen=True)
class Row:
    """A part with its options, and a peer that computes the same in another way."""

    part: str
    make: Callable[[], Transform]
    peer: Callable[[], Peer | optax.GradientTransformation]
    peer_name: str
    paper: str
    needs: str = "gradients"
    case: str = ""
    tolerance: float = 1e-6
    xla_tolerance: float = 1e-6  # between the optimizer compiled and not
    steps: int = 8  # that a test takes; more if the rule does something later
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
    reason: str = ""  # for differences from the paper

    @property
    def id(self) -> str:
        return f"{self.part}: {self.case}" if self.case else self.part


@functools.cache
def problem() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Returns initial weights, curvatures, noise for each step, and invented losses that fall and then level off."""
    rng = np.random.default_rng(3)
    start = {path: rng.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}
    curvature = {path: rng.uniform(0.1, 1.0, size=shape).astype(np.float32) for path, shape in SHAPES.items()}
    noise = {path: rng.normal(size=(STEPS, *shape)).astype(np.float32) for path, shape in SHAPES.items()}
    losses = np.exp(-np.arange(STEPS) / 5.0).round(2).astype(np.float32)
    return start, curvature, noise, losses


def gradients_at(params: Any, i: Any) -> dict[str, Any]:
    """Returns the gradients of a noisy quadratic at `params`, in NumPy."""
    _, curvature, noise, _ = problem()
    return {path: curvature[path] * x + noise[path][i] for path, x in params.items()}


def largest(values: Any) -> float:
    """Returns the largest absolute number of all tensors."""
    return max(float(np.max(np.abs(x))) for x in values.values())


class Run:
    """Runs an optimizer on the problem: `update` takes step `i`, in a graph unless `mode` is "eager" or "xla"."""

    def __init__(
        self,
        transform: Transform,
        *,
        mode: str = "graph",
        fused: bool = True,
        dtype: tf.DType = tf.float32,
        paths: Sequence[str] = tuple(SHAPES),
    ):
        self.params = {path: tf.Variable(tf.cast(problem()[0][path], dtype)) for path in paths}
        self.optimizer = Optimizer(transform, self.params)
        self.dtype, self.fused = dtype, fused
        traced = tf.function(self._apply, jit_compile=mode == "xla", autograph=False)
        self.call: Any = self._apply if mode == "eager" else traced

    def _apply(self, gradients: Any, value: tf.Tensor, apply_if: tf.Tensor | None = None) -> Any:
        if self.optimizer.curvature_due:
            curvature = {path: tf.cast(problem()[1][path], g.dtype) for path, g in gradients.items()}
            self.optimizer.take_curvature(curvature, apply_if=apply_if)
        self.optimizer.apply(gradients, value=value, apply_if=apply_if, fused=self.fused)
        return self.optimizer.shadow()

    def update(self, i: int, *, apply_if: bool | None = None, spoil: float = 0.0) -> tuple[Any, Any]:
        """Returns the weights and their shadow after the update."""
        gradients = gradients_at(self.weights(), i)
        flag = () if apply_if is None else (tf.constant(apply_if),)
        tensors = {path: tf.cast(g + np.float32(spoil), self.dtype) for path, g in gradients.items()}
        shadow = self.call(tensors, tf.constant(problem()[3][i]), *flag)
        return self.weights(), shadow and {path: x.numpy() for path, x in shadow.items()}

    def weights(self) -> dict[str, Any]:
        return {path: v.numpy() for path, v in self.params.items()}

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {**self.params, **self.optimizer.variables}

    def bits(self) -> dict[str, bytes]:
        return {path: v.numpy().tobytes() for path, v in self.variables.items()}

    def numbers(self) -> np.ndarray:
        return flat(self.weights())


def flat(weights: dict[str, Any]) -> np.ndarray:
    """Returns all weights as one vector of float64."""
    return np.concatenate([np.ravel(x).astype(np.float64) for x in weights.values()])


def trajectory(run: Run, steps: int) -> list[tuple[Any, Any]]:
    """Returns the weights and their shadow after each of the first updates."""
    return [run.update(i) for i in range(steps)]


@functools.cache
def peer_trajectory(row: Row, steps: int) -> list[tuple[Any, Any]]:
    """Returns the same for the row's peer."""
    start, _, _, losses = problem()
    peer = row.peer()
    peer = peer if isinstance(peer, Peer) else from_optax(peer)
    params, state, seen = start, peer.init(start), []
    for i in range(steps):
        gradients = gradients_at({path: np.asarray(x) for path, x in params.items()}, i)
        params, state = peer.step(gradients, state, params, losses[i])
        seen.append((params, peer.shadow and peer.shadow(state, params)))
    return seen


def largest_difference(row: Row, mine: Sequence[tuple[Any, Any]]) -> float:
    """Returns the largest difference from the peer's trajectory; a shadow of both counts as weights."""
    return max(
        largest({path: a[path] - np.asarray(b[path]) for path in SHAPES}) / largest(b)
        for both in zip(mine, peer_trajectory(row, len(mine)), strict=True)
        for a, b in zip(*both, strict=True)
        if b is not None
    )


def schedule_difference(row: ScheduleRow) -> float:
    """Returns the largest difference of a schedule from its peer, over the largest rate."""
    schedule, theirs = row.make(), in_numpy(jax.vmap(row.peer()))(np.arange(STEPS, dtype=np.int32))
    mine = np.stack([schedule(tf.constant(i, tf.int64)) for i in range(STEPS)])
    return float(np.max(np.abs(mine - theirs)) / np.max(theirs))


def table(rows: Sequence[Row | ScheduleRow]) -> list[dict[str, str]]:
    """Returns the rows of docs/parts.md; the difference is the larger of the kernel's and the pure function's."""
    described = []
    for row in rows:
        if isinstance(row, Row):
            runs = [Run(row.make(), fused=fused) for fused in (True, False)]
            seen = [largest_difference(row, trajectory(run, STEPS)) for run in runs]
        else:
            seen = [schedule_difference(row)]
        described.append(
            {
                "part": row.id,
                "paper": row.paper,
                "needs": row.needs.removeprefix("gradients").removeprefix(", ") if isinstance(row, Row) else "step",
                "peer": row.peer_name,
                "difference": f"{max(seen):.1e}",
                "note": row.reason,
            }
        )
    return described
