"""Measures norms of the next step's gradients and updates per module, without applying the step.

It runs all phases of the step, each with the current weights, and writes nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from core.engine.assembly import Assembly
from core.engine.chunk import Taken, batch_at, make_chunk
from core.engine.inspect_phase import Specs
from core.engine.loss_scale import LossScale
from core.engine.progress import Progress
from core.engine.step import TrainStep
from core.optimizers import Optimizer
from core.optimizers.slots import read, read_all, working_dtype
from core.optimizers.transform import Tensors
from core.task import Batch

KINDS = ("gradient", "weight", "update")


class MeasuredUpdate(Optimizer):
    """An optimizer that records the norms of its update and writes nothing: `{"update/net/dense": variable}`."""

    def __init__(self, optimizer: Optimizer):
        self.transform, self.parameters = optimizer.transform, optimizer.parameters
        self.step, self.slots, self.sharded = optimizer.step, optimizer.slots, optimizer.sharded
        self._estimate: Tensors | None = None  # of the curvature, for the next `apply`
        self.averaged_statistics = {}  # no averages are moved
        self.modules: dict[str, list[str]] = {}
        for path in self.parameters:
            self.modules.setdefault(path.rpartition("/")[0] or path, []).append(path)
        self.norms = {
            f"{kind}/{module}": tf.Variable(0.0, trainable=False, name=f"{kind}/{module}")
            for kind in KINDS
            for module in self.modules
        }

    def apply(
        self,
        gradients: Tensors,
        *,
        value: tf.Tensor | None = None,
        apply_if: tf.Tensor | None = None,
        fused: bool = True,
    ) -> None:
        """Computes the update of `Optimizer.apply`, and records the norms of gradients, weights and updates."""
        gradients = {path: self._gradient(path, gradients) for path in self.parameters}
        weights, step = read(self.parameters), self.step.read_value()
        state = read_all(self.slots)
        if self.transform.curvature and self._estimate is not None:
            state = self.transform.curvature.take(self._estimate, state, step)
        updates, _ = self.transform.update(gradients, state, weights, step=step, value=value)
        for kind, tensors in zip(KINDS, (gradients, weights, updates), strict=True):
            for module, paths in self.modules.items():
                self.norms[f"{kind}/{module}"].assign(_norm(tensors[path] for path in paths))

    def take_curvature(self, estimate: Tensors, *, apply_if: tf.Tensor | None = None) -> None:
        """Keeps the `estimate` for the update that `apply` measures next, in the same trace."""
        self._estimate = {path: tf.cast(estimate[path], working_dtype(v)) for path, v in self.parameters.items()}


class Watch:
    """Measures the next step in a separate traced function, so that training without measurements isn't slower."""

    def __init__(
        self,
        assembly: Assembly,
        batch: Specs,
        stacked: Any,
        *,
        seed: int,
        steps: int,
        precision: str | Mapping[str, str] = "float32",
        loss_scales: Mapping[str, LossScale] | None = None,
        decode: Callable[[Batch], Batch] | None = None,
    ):
        self.optimizers = {
            name: assembly.made_with(name, functools.partial(MeasuredUpdate, optimizer))
            for name, optimizer in assembly.optimizers.items()
        }
        phases = [dataclasses.replace(phase, every=1) for phase in assembly.phases]
        looking = dataclasses.replace(assembly, phases=phases, optimizers=self.optimizers)
        self._step = TrainStep(
            looking,
            batch,
            seed=seed,
            steps=steps,
            precision=precision,
            loss_scales=loss_scales,
            writes=False,
            decode=decode,
        )
        chunk = make_chunk(self._step, stacked, Progress({}, strategy=assembly.strategy), self._look)
        self._chunk = self._step.backend.program(chunk.get_concrete_function(), self._step.exchange.ledger)

    def norms(self, stacked: Batch, *, first: int, step: int) -> dict[str, float]:
        """Returns norms of step `step`, such as `{"gradient/net/dense": 0.5}`. Its chunk begins at `first`.

        If the task has several updates, each name begins with the name of its phase.
        """
        self._chunk(stacked, self._step.backend.handed(tf.constant([first, step, step + 1], tf.int64)))
        several = len(self.optimizers) > 1
        return {
            f"{phase}/{name}" if several else name: float(norm.numpy())
            for phase, optimizer in self.optimizers.items()
            for name, norm in optimizer.norms.items()
        }

    def _look(self, stacked: Batch, first: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, before: Taken) -> Taken:
        with self._step.backend.around_loop():
            self._step(batch_at(self._step.exchange, stacked, begin - first), begin)
        return before


def _norm(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(x, tf.float32))) for x in tensors]))
