"""From a task's phases to one exact training step, on as many replicas as the strategy has.

Control flow over phases stands here, around `strategy.run`: a collective inside a replica's condition or loop raises.
Arithmetic stands in the replicas. The pieces are public, for those who write their own loop:

    accumulated, outputs = accumulate_gradients(loss, optimizer.parameters, values, rng)
    accumulated = reduce_over_replicas(accumulated, exchange)  # the one reduction of an update, in replica context
    optimizer.apply(accumulated.mean_gradients())
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.distribution.ledger import GRADIENTS
from core.engine.accumulate import (
    Accumulated,
    Additive,
    Microbatches,
    accumulate_gradients,
    all_finite,
    at_microbatch,
    compute,
    shape_of,
)
from core.engine.plan import Plan, make_plans
from core.loss_spec import LossSpec, Sums
from core.module import named_variables
from core.optimizers import Optimizer
from core.random import Rng
from core.statistics import Statistics, commit, refreshed, summing_over_replicas
from core.task import Batch, Compute, Phase, Update


class StepResult(NamedTuple):
    """The figures of one step."""

    healthy: tf.Tensor  # false where a loss or gradient wasn't finite; after it nothing was written
    sums: Mapping[str, Sums]  # by phase; zero for a phase that wasn't due


def reduce_over_replicas(accumulated: Accumulated, exchange: Exchange, name: str = "loss") -> Accumulated:
    """Sums gradients and figures over the replicas, in one go. For use in replica context."""
    additive = accumulated.additive
    narrow = exchange.reduce_in
    if narrow is not None:
        additive = additive._replace(gradients={path: _cast(x, narrow) for path, x in additive.gradients.items()})
    additive = exchange.sum(additive, phase=name, what=GRADIENTS)
    if narrow is not None:
        wide = {path: _cast(x, accumulated.gradients[path].dtype) for path, x in additive.gradients.items()}
        additive = additive._replace(gradients=wide)
    return dataclasses.replace(accumulated, additive=additive)


class TrainStep:
    """`step(values, index) -> StepResult`: the phases of one training step, for use in cross-replica context.

    `values` are `[microbatches, rows, ...]` on each replica, `index` is the step's number, from 0.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        optimizers: Mapping[str, Optimizer],
        *,
        strategy: tf.distribute.Strategy,
        seed: int,
        batch_spec: Mapping[str, tf.TensorSpec],
        compile: bool = False,
        reduce_in: tf.DType | None = None,
    ):
        self.phases, self.optimizers, self.compile = phases, optimizers, compile
        self.exchange = Exchange(strategy, reduce_in=reduce_in)
        self.rng = Rng.from_seed(seed).fold("train")
        self.plans = make_plans(phases, batch_spec)
        self.specs: dict[str, LossSpec] = {plan.phase.name: plan.loss for plan in self.plans if plan.loss}

    def __call__(self, values: Batch, index: tf.Tensor) -> StepResult:
        """Runs every phase that is due."""
        self.exchange.ledger.clear()
        values, sums, healthy = dict(values), {}, tf.constant(True)
        for plan in self.plans:
            mine, every = plan.inputs(values), plan.phase.every
            if every == 1:
                healthy, sums[plan.phase.name], outputs = self._run(plan, mine, index, healthy)
            else:
                healthy, sums[plan.phase.name], outputs = tf.cond(
                    tf.equal(index % every, 0),
                    lambda p=plan, v=mine, h=healthy: self._run(p, v, index, h),
                    lambda p=plan, v=mine, h=healthy: (h, *self._nothing(p, v)),
                )
            values |= outputs
        return StepResult(healthy, {name: sums[name] for name in self.specs})

    def rng_of(self, phase: Phase, index: tf.Tensor) -> Rng:
        """The random numbers of `phase` in step `index`: they hang on nothing else but the run's seed."""
        return self.rng.fold(index).fold(phase.name)

    def _run(self, plan: Plan, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        """The agreed flag, the reduced sums, and the outputs on every replica."""
        if isinstance(plan.phase, Compute):
            return healthy, {}, self._compute(plan, plan.phase, values, index)
        return self._update(plan, plan.phase, values, index, healthy)

    def _nothing(self, plan: Plan, values: Batch) -> Any:
        """The results of a phase that isn't due, in the structure of one that is."""
        return (plan.loss.zero_sums() if plan.loss else {}), self.exchange.run(self._no_outputs, plan, values)

    def _no_outputs(self, plan: Plan, values: Batch) -> dict[str, tf.Tensor]:
        microbatches, _ = shape_of(values)
        return {key: tf.zeros([microbatches, *spec.shape], spec.dtype) for key, spec in plan.outputs.items()}

    # --- phases ------------------------------------------------------------------------------------------------------

    def _compute(self, plan: Plan, phase: Compute, values: Batch, index: tf.Tensor) -> dict[str, tf.Tensor]:
        def replica(values: Batch, index: tf.Tensor) -> dict[str, tf.Tensor]:
            return compute(
                phase.fn,
                values,
                self._rng_here(phase, index, values),
                replicas=self.exchange.replicas,
                name=phase.name,
                specs=plan.outputs,
                sum_over_replicas=self.exchange.sum_statistics(phase.name),
            )

        def microbatch(values: Batch, index: tf.Tensor, m: tf.Tensor, outputs: Batch) -> dict[str, tf.Tensor]:
            rng = at_microbatch(self._rng_here(phase, index, values), m, shape_of(values)[1], self.exchange.replicas)
            with summing_over_replicas(self.exchange.sum_statistics(phase.name)):
                made = phase.fn({key: x[m] for key, x in values.items()}, rng)
            return _written(outputs, m, made)

        if not self._together(phase, values):
            return dict(self.exchange.run(replica, values, index))
        outputs = self.exchange.run(self._no_outputs, plan, values)
        loop = self._over_microbatches(values, lambda m, o: self.exchange.run(microbatch, values, index, m, o), outputs)
        return dict(loop)

    def _update(self, plan: Plan, phase: Update, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        layers = Statistics()
        spec, parameters = plan.loss, self.optimizers[phase.name].parameters
        assert spec

        def sums(values: Batch, index: tf.Tensor) -> Any:
            nonlocal layers
            accumulated, outputs = accumulate_gradients(
                phase.loss,
                parameters,
                values,
                self._rng_here(phase, index, values),
                replicas=self.exchange.replicas,
                name=phase.name,
                spec=spec,
                sum_over_replicas=self.exchange.sum_statistics(phase.name),
            )
            layers = accumulated.layers
            return accumulated.additive, outputs

        def write(additive: Additive, healthy: tf.Tensor) -> Any:
            return self._write(phase, Accumulated(additive, spec.weighted, layers), healthy)

        def replica(values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
            # With several replicas only the arithmetic can be compiled, not the collective after it.
            separately = self.compile and self.exchange.replicas > 1 and not phase.mixes_rows
            arithmetic = tf.function(sums, autograph=False, jit_compile=True) if separately else sums
            additive, outputs = arithmetic(values, index)
            return (*write(additive, healthy), outputs)

        def microbatch(values: Batch, index: tf.Tensor, m: tf.Tensor, so_far: Additive, outputs: Batch) -> Any:
            nonlocal layers
            parts = self._microbatches(phase, spec, values)
            more, made = parts.differentiate(values, m, self._rng_here(phase, index, values))
            layers = parts.layers
            return tf.nest.map_structure(tf.add, so_far, more), _written(outputs, m, made)

        if not self._together(phase, values):
            healthy, figures, outputs = self.exchange.run(replica, values, index, healthy)
        else:
            start = self.exchange.run(lambda v: self._microbatches(phase, spec, v).nothing(), values)
            start = (start, self.exchange.run(self._no_outputs, plan, values))
            additive, outputs = self._over_microbatches(
                values, lambda m, so_far: self.exchange.run(microbatch, values, index, m, *so_far), start
            )
            healthy, figures = self.exchange.run(write, additive, healthy)
        return (*self.exchange.first((healthy, figures)), outputs)

    def _write(self, phase: Update, accumulated: Accumulated, healthy: tf.Tensor) -> tuple[tf.Tensor, Sums]:
        """The one reduction, and everything that an update writes, in replica context."""
        accumulated = reduce_over_replicas(accumulated, self.exchange, phase.name)
        gradients = accumulated.mean_gradients()
        # The update waits for the loss alone, known before the gradients are: waiting for the check of those would
        # cost small models a tenth of their speed. A gradient that isn't finite ends the run all the same.
        written = healthy & tf.math.is_finite(accumulated.sums["loss"])
        healthy = written & all_finite(gradients)
        if accumulated.weighted:
            # No weight is no evidence: the run goes on without an update. Less than none is a mistake.
            healthy &= accumulated.sums["weight"] >= 0.0
            written &= accumulated.sums["weight"] > 0.0
        value = tf.math.divide_no_nan(accumulated.sums["loss"], accumulated.sums["weight"])
        fused = not self.compile or self.exchange.replicas > 1
        self.optimizers[phase.name].apply(gradients, value=value, commit=written, fused=fused)
        commit_untrained(phase, accumulated, written)
        return healthy, accumulated.sums

    # --- microbatches ------------------------------------------------------------------------------------------------

    def _together(self, phase: Phase, values: Batch) -> bool:
        """Whether the replicas take each microbatch together, because a collective can't stand in their own loops."""
        return phase.mixes_rows and self.exchange.replicas > 1 and self._shape(values)[0] > 1

    def _over_microbatches(self, values: Batch, one: Any, start: Any) -> Any:
        microbatches, _ = self._shape(values)
        body = lambda m, so_far: (m + 1, one(m, so_far))  # noqa: E731
        return tf.while_loop(lambda m, _: m < microbatches, body, (tf.constant(0), start))[1]

    def _microbatches(self, phase: Update, spec: LossSpec, values: Batch) -> Microbatches:
        microbatches, rows = shape_of(values)
        return Microbatches(
            phase.loss,
            self.optimizers[phase.name].parameters,
            name=phase.name,
            spec=spec,
            microbatches=microbatches,
            rows=rows,
            replicas=self.exchange.replicas,
            sum_over_replicas=self.exchange.sum_statistics(phase.name),
            sparse=False,
        )

    def _shape(self, values: Batch) -> tuple[int, int]:
        return shape_of(self.exchange.first(dict(values)))

    def _rng_here(self, phase: Phase, index: tf.Tensor, values: Batch) -> Rng:
        """At the first row of this replica's first microbatch."""
        _, rows = shape_of(values)
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        return self.rng_of(phase, index)._replace(first_row=place * rows, num_rows=rows)


def commit_untrained(phase: Update, accumulated: Accumulated, where: tf.Tensor) -> None:
    """Moves averages and derived state of the modules that `phase` trains; those of others it only read."""
    modules = [phase.trains] if isinstance(phase.trains, tf.Module) else list(phase.trains)
    values = accumulated.layers.averages(accumulated.additive.statistics)
    for module in modules:
        values |= refreshed(module)  # from the parameters as the update left them
    own = {variable.ref() for module in modules for variable in named_variables(module).values()}
    commit({reference: value for reference, value in values.items() if reference in own}, keep=~where)


def _written(outputs: Batch, m: tf.Tensor, made: Batch) -> dict[str, tf.Tensor]:
    """`outputs` with those of microbatch `m` in their place."""
    return {key: tf.tensor_scatter_nd_update(x, [[m]], made[key][tf.newaxis]) for key, x in outputs.items()}


def _cast(gradient: Any, dtype: tf.DType) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(gradient.values, dtype), gradient.indices, gradient.dense_shape)
    return tf.cast(gradient, dtype)
