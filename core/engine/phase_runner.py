"""Runs a phase on the devices of its plan; long, as one loop accumulates, differentiates and updates."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange, replica_here
from core.distribution.ledger import FIGURES
from core.engine.accumulate import Accumulated, Sweep
from core.engine.apply_update import reduce_over_replicas, write_update
from core.engine.assembly import Assembly
from core.engine.layout import Placed, cut, moved
from core.engine.loss_scale import Factor, LossScale
from core.engine.microbatch import Additive, Asked, Microbatch, Rows
from core.engine.plan import Plan, is_shape_only
from core.errors import ConfigurationError
from core.module import named_variables
from core.random import Moment, Rng
from core.task import Batch, Compute, Phase, Update
from core.task.guards import refuse_missing_gradients
from core.task.statistics import Statistics

# From gradients of a `Compute`'s outputs to those of the variables that the update trains, where the `Compute` ran.
Pullback = Callable[[Plan, Mapping[str, Any]], Any]


class PhaseRunner:
    """Runs each phase of one step: an `Update`, optionally through a `Compute`, or a `Compute`."""

    def __init__(
        self,
        plans: Sequence[Plan],
        assembly: Assembly,
        exchange: Exchange,
        *,
        rng: Rng,
        steps: int | None,
        microbatches: int,
        loss_scales: Mapping[str, LossScale] = {},
    ):
        self.optimizers, self.one_device_ids = assembly.optimizers, assembly.one_device_ids
        self.exchange, self.rng, self.steps = exchange, rng, steps
        self.microbatches, self.loss_scales = microbatches, loss_scales
        self.compile(())
        self._pullbacks: dict[str, Pullback] = {}  # through the stored forward passes of this trace
        self._arrived: dict[str, Any] = {}  # values already moved to other devices
        self._limits: Mapping[str, tf.Tensor] | None = None  # of gradient norms, if updates wait for these
        self._gone_through = {plan.through.name for plan in plans if plan.through}

    def compile(self, updates: Collection[str], *, loops_apart: Collection[str] = ()) -> None:
        """Sets the `updates` that XLA compiles separately. In `loops_apart`, it compiles each microbatch separately."""
        self.compiled, self._loops_apart = updates, loops_apart

    def begin(self, limits: Mapping[str, tf.Tensor] | None) -> None:
        """Begins a trace: discards values of an earlier trace, and sets `limits` of gradient norms, by update."""
        self._limits = limits
        self._pullbacks.clear()
        self._arrived.clear()

    def run(self, plan: Plan, placed: Mapping[str, Placed], index: tf.Tensor, healthy: tf.Tensor) -> Any:
        """Runs a phase. Returns whether the step is still healthy, the reduced sums, and the phase's outputs."""
        values = self._inputs_of(plan, placed)
        if isinstance(plan.phase, Update):
            if plan.through is None:
                return self._update(plan, values, index, healthy)
            return self._update_through(plan, plan.through, values, placed, index, healthy)
        if plan.phase.state is None:
            return healthy, {}, self._compute(plan, values, index)
        return healthy, {}, self._history(plan, plan.phase, values, index, healthy)

    def skipped_outputs(self, plan: Plan) -> Any:
        """Returns zeros in the shapes of a phase's outputs, for a step in which the phase isn't due."""

        def empty() -> Any:
            n, specs = plan.microbatches, plan.outputs.items()
            return cut({key: tf.zeros([n, *spec.shape], spec.dtype) for key, spec in specs}, self.microbatches)

        return self._run_at(plan, empty)

    # --- the kinds of phases -----------------------------------------------------------------------------------------

    def _update(self, plan: Plan, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        factor = self._factor(plan)
        optimizer = self.optimizers[plan.name]
        due, sampled = optimizer.curvature_due, plan.sampled_loss
        asked = Asked(plan.name, optimizer.parameters, factor=factor, curvature_due=due, sampled_loss=sampled)
        added, rows, layers = self._sweep(plan, values, index, asked)

        def write(gradients: Mapping[str, Any], added: Additive, healthy: tf.Tensor) -> Any:
            known = factor and factor.read()
            added = added._replace(gradients=gradients)
            found = Accumulated(added, not plan.weighted, known, layers, sampled=sampled is not None)
            if plan.replicated:
                found = reduce_over_replicas(found, self.exchange, plan.name)
            return self._written(plan, found, healthy)

        gradients, others = added.gradients, added._replace(gradients={})
        written = self._run_at_variables(plan, write, gradients, others, healthy, replicated=plan.replicated)
        return *written, rows.outputs

    def _update_through(
        self,
        plan: Plan,
        source: Plan,
        values: Batch,
        placed: Mapping[str, Placed],
        index: tf.Tensor,
        healthy: tf.Tensor,
    ) -> Any:
        """Trains through the `Compute` `source`: sends the gradients of its outputs to its devices."""
        # Only weights are needed before the gradients are sent; without them, the metrics are sent with these.
        together = plan.replicated and source.replicated and not plan.weighted
        factor = self._factor(plan)

        def of_the_mean(added: Additive, cotangents: Batch) -> tuple[Additive, Batch]:
            if plan.replicated and not together:
                added = self.exchange.sum(added, phase=plan.name, what=FIGURES)
            if plan.weighted:
                share = factor.share if factor else 1.0
                by = tf.math.divide_no_nan(1.0 / share, added.sums["weight"])
                cotangents = {key: _multiplied(x, by) for key, x in cotangents.items()}
            return added, cotangents

        def write(gradients: Mapping[str, Any], added: Additive, healthy: tf.Tensor) -> Any:
            own = added if together else Additive({}, {}, {})
            scale = factor and factor.loss_scale.scale.read_value()  # the share was divided out before
            found = Accumulated(own._replace(gradients=gradients), True, scale, layers)
            if source.replicated:
                found = reduce_over_replicas(found, self.exchange, plan.name)
            if not together:
                found = Accumulated(added._replace(gradients=found.gradients), True, scale, layers)
            return self._written(plan, found, healthy)

        wanted = [key for key, spec in source.outputs.items() if key in plan.reads and spec.dtype.is_floating]
        added, rows, layers = self._sweep(plan, values, index, Asked(plan.name, inputs=wanted, factor=factor))
        added, cotangents = self._run_at(plan, of_the_mean, added, rows.gradients)
        if not source.replicated:
            added = self.exchange.first(added)  # summed already, so all replicas have the same
        cotangents = {
            key: moved(Placed(x, plan.replicated), source.replicated, self.exchange, plan.name)
            for key, x in cotangents.items()
        }
        pull = self._pullbacks.get(source.name) or self._forward_again(source, placed, index)
        gradients = pull(plan, cotangents)
        written = self._run_at_variables(plan, write, gradients, added, healthy, replicated=source.replicated)
        return *written, rows.outputs

    def _compute(self, plan: Plan, values: Batch, index: tf.Tensor) -> Any:
        if plan.name not in self._gone_through or plan.phase.every > 1:
            return self._sweep(plan, values, index, Asked())[1].outputs
        sweep, kept = self._sweep_of(plan), dict[int | None, Any]()  # by replica

        def recorded(values: Batch, index: tf.Tensor) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                outputs = self._swept(plan, sweep, values, index, Asked())[1].outputs
            kept[replica_here()] = (tape, outputs)
            return outputs

        def pull(update: Plan, cotangents: Mapping[str, Any]) -> Any:
            """Continues the backward pass with the forward pass's tape. This may be in a later `strategy.run`."""

            def replica(cotangents: Batch) -> Any:
                tape, outputs = kept[replica_here()]
                parameters, along = dict(self.optimizers[update.name].parameters), list(cotangents.values())
                targets = [outputs[key] for key in cotangents]
                with plan.narrowing.computing():
                    gradients = tape.gradient(targets, parameters, output_gradients=along)
                refuse_missing_gradients(gradients, update.name)
                return {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}

            return self._run_at(plan, replica, cotangents)

        self._pullbacks[plan.name] = pull
        return self._run_at(plan, recorded, values, index)

    def _forward_again(self, source: Plan, placed: Mapping[str, Placed], index: tf.Tensor) -> Pullback:
        """Returns a function that repeats the forward pass for gradients, as no tape reaches into a `tf.cond`."""

        def pull(update: Plan, cotangents: Mapping[str, Any]) -> Any:
            asked = Asked(update.name, self.optimizers[update.name].parameters, cotangents=cotangents)
            return self._sweep(source, self._inputs_of(source, placed), index, asked)[0].gradients

        return pull

    def _history(self, plan: Plan, phase: Compute, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        with tf.device(self.exchange.device):
            whole = {key: x[0] for key, x in cut(values, 1).items()}
            outputs, state = phase.fn(plan.narrowing.narrowed(whole), self._rng_here(plan, index))
            outputs = cut({key: x[tf.newaxis] for key, x in outputs.items()}, self.microbatches)
        own = {variable.ref() for variable in named_variables(phase.state).values()} if phase.state else set()
        for reference, value in state.items():
            variable = reference.deref()
            if reference not in own:
                raise ConfigurationError(
                    f"phase `{plan.name}` returns a value for `{variable.name}`, which isn't part of its `state`: a "
                    "phase writes its own history only."
                )
            variable.assign(tf.where(healthy, value, variable.read_value()))
        return outputs

    # --- accumulation loops ------------------------------------------------------------------------------------------

    def _sweep(self, plan: Plan, values: Batch, index: tf.Tensor, asked: Asked) -> tuple[Additive, Rows, Statistics]:
        """Accumulates over all microbatches on the phase's devices. Row results are split as the trainer splits."""
        compiles = plan.name in self.compiled and asked.cotangents is None
        by_microbatch = compiles and plan.name in self._loops_apart and plan.microbatches > 1
        sweep = self._sweep_of(plan, compiled=by_microbatch)
        if plan.together:
            values = self._run_at(plan, lambda x: cut(x, plan.microbatches), values)
            added, rows = sweep.around(self.exchange.run, values, index, lambda i: self._rng_here(plan, i), asked)
            return added, self._run_at(plan, self._cut_back, rows), sweep.one.layers

        def swept(values: Batch, index: tf.Tensor, cotangents: Batch | None) -> tuple[Additive, Rows]:
            return self._swept(plan, sweep, values, index, asked._replace(cotangents=cotangents))

        # Several replicas can compile only an update's arithmetic, not the collective after it. The wrapper is made in
        # the replica: one made outside would be traced for one replica, and called by all with that one's variables.
        fn = swept
        if compiles and not by_microbatch:
            fn = lambda *args: tf.function(swept, autograph=False, jit_compile=True)(*args)  # noqa: E731
        added, rows = self._run_at(plan, fn, values, index, asked.cotangents)
        return added, rows, sweep.one.layers

    def _swept(self, plan: Plan, sweep: Sweep, values: Batch, index: tf.Tensor, asked: Asked) -> tuple[Additive, Rows]:
        if asked.cotangents is not None:
            asked = asked._replace(cotangents=cut(asked.cotangents, plan.microbatches))
        added, rows = sweep(cut(values, plan.microbatches), self._rng_here(plan, index), asked)
        return added, self._cut_back(rows)

    def _cut_back(self, rows: Rows) -> Rows:
        return Rows(cut(rows.outputs, self.microbatches), cut(rows.gradients, self.microbatches))

    def _sweep_of(self, plan: Plan, *, compiled: bool = False) -> Sweep:
        one = Microbatch(
            plan.phase.loss if isinstance(plan.phase, Update) else plan.phase.fn,
            plan.name,
            plan.microbatches,
            plan.rows,
            plan.loss,
            self.exchange if plan.replicated else None,
            sparse=plan.loss is not None and not plan.together,
            narrowing=plan.narrowing,
            clip_examples=plan.phase.clip_examples if isinstance(plan.phase, Update) else None,
            splits=max(1, plan.microbatches // self.microbatches),
        )
        return Sweep(one, plan.outputs, compiled, plan.access.casts)

    # --- placement ---------------------------------------------------------------------------------------------------

    def _run_at(self, plan: Plan, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on the phase's devices: on every replica, or once on one device."""
        if plan.replicated:
            return self.exchange.run(fn, *args)
        with tf.device(self.exchange.device):
            return fn(*args)

    def _run_at_variables(self, plan: Plan, write: Callable[..., Any], *values: Any, replicated: bool) -> Any:
        """Calls `write` on the devices of the phase's variables: on every replica, or on one device.

        `replicated` says that `values` are on every replica. Otherwise they are on one device.
        """
        parameters = self.optimizers[plan.name].parameters
        if not replicated and any(id(variable) in self.one_device_ids for variable in parameters.values()):
            with tf.device(self.exchange.device):
                return write(*values)
        if not replicated:
            self.exchange.note_broadcast(values, plan.name)
        return self.exchange.at_variables(write, *values, phase=plan.name, parameters=parameters)

    def _written(self, plan: Plan, reduced: Accumulated, healthy: tf.Tensor) -> Any:
        assert isinstance(plan.phase, Update)
        limit = self._limits[plan.name] if self._limits else None
        optimizer = self.optimizers[plan.name]
        with self.exchange.sharing(plan.name) if optimizer.sharded else contextlib.nullcontext():
            return write_update(
                plan.phase,
                optimizer,
                reduced,
                healthy,
                weighted=plan.weighted,
                limit=limit,
                loss_scale=self.loss_scales.get(plan.name),
                parts=plan.microbatches * plan.replicas,
            )

    def _factor(self, plan: Plan) -> Factor | None:
        """Returns the factor of an update's loss, or None if the loss isn't scaled."""
        if plan.name not in self.loss_scales:
            return None
        assert plan.loss
        return Factor.of(self.loss_scales[plan.name], plan.loss, plan.microbatches * plan.replicas)

    def _inputs_of(self, plan: Plan, placed: Mapping[str, Placed]) -> dict[str, Any]:
        """Returns the phase's inputs, `{key: value}`, moved to the phase's devices."""
        return {key: self._input(plan, key, placed[key]) for key in plan.reads}

    def _input(self, plan: Plan, key: str, value: Placed) -> Any:
        if value.replicated == plan.replicated:
            return value.value
        if not is_shape_only(plan, key):
            arrived = self._arrived.get(key)
            if arrived is None:
                arrived = moved(value, plan.replicated, self.exchange, plan.name)
            if plan.phase.every == 1:  # a later phase can't reach into a condition
                self._arrived[key] = arrived
            return arrived
        # Only the shape is needed, so nothing is sent.
        part = self.exchange.first(value.value)
        rows = plan.rows * plan.microbatches // self.microbatches
        return self._run_at(plan, lambda: tf.zeros([self.microbatches, rows, *part.shape[2:]], part.dtype))

    # --- randomness --------------------------------------------------------------------------------------------------

    def rng_of(self, phase: Phase, index: tf.Tensor) -> Rng:
        """Returns the `Rng` of `phase` in step `index`, with the number of the step."""
        moment = Moment(tf.cast(index, tf.int64), self.steps)
        return self.rng.fold(index).fold(phase.name)._replace(moment=moment)

    def _rng_here(self, plan: Plan, index: tf.Tensor) -> Rng:
        """Returns the phase's `Rng`, positioned at this replica's first row of the first microbatch."""
        rows = plan.rows * plan.microbatches // self.microbatches  # of one of the trainer's microbatches
        runs = max(1, plan.rows // rows)  # of the trainer's microbatches make one of the phase's
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * rows if plan.replicated else 0
        rng = self.rng_of(plan.phase, index)
        return rng._replace(first_row=first, num_rows=plan.rows, runs=runs, stride=rows * plan.replicas)


def _multiplied(x: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
    """Returns `x * by`, multiplied in float32 if `x` is narrower. One over a total weight may underflow in float16."""
    wide = x.dtype if x.dtype.size >= 4 else tf.float32
    return tf.cast(tf.cast(x, wide) * tf.cast(by, wide), x.dtype)
