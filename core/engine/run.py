"""Runs one phase where it belongs: on every replica, or once on one device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange, replica_here
from core.engine.accumulate import Accumulated, Additive, Microbatches, accumulate_gradients, at_microbatch, compute
from core.engine.place import Placed, cut, moved
from core.engine.plan import Plan, is_shape_only
from core.engine.through import Recorded, update_through
from core.engine.write import reduce_over_replicas, write_update
from core.errors import ConfigurationError
from core.module import named_variables
from core.optimizers import Optimizer
from core.random import Rng
from core.task import Batch, Compute, Phase, Update
from core.task.loss import Sums
from core.task.statistics import Statistics, SumOverReplicas, summing_over_replicas


class PhaseRunner:
    """What the phases of one step have in common, and how each kind is run."""

    def __init__(
        self,
        plans: Sequence[Plan],
        optimizers: Mapping[str, Optimizer],
        exchange: Exchange,
        *,
        rng: Rng,
        microbatches: int,
        compile: bool,
        alone: Collection[int],
    ):
        self.optimizers, self.exchange, self.rng = optimizers, exchange, rng
        self.microbatches, self.compile, self.alone = microbatches, compile, alone
        # Forward passes of this trace that a later phase goes back through: by phase and replica.
        self.recorded: dict[str, dict[int | None, Recorded]] = {}
        self._arrived: dict[str, Any] = {}  # values that were moved already, where they weren't made
        self._gone_through = {plan.through.name for plan in plans if plan.through}

    def begin(self) -> None:
        """Forgets what belongs to an earlier trace."""
        self.recorded.clear()
        self._arrived.clear()

    def run(self, plan: Plan, placed: Mapping[str, Placed], index: tf.Tensor, healthy: tf.Tensor) -> Any:
        """Whether all is well, the reduced sums, and the outputs where the phase runs."""
        values = self.inputs_of(plan, placed)
        if isinstance(plan.phase, Update):
            if plan.through is None:
                return self._update(plan, plan.phase, values, index, healthy)
            return update_through(self, plan, plan.phase, values, placed, index, healthy)
        run = self._compute if plan.phase.state is None else self._history
        return healthy, {}, run(plan, plan.phase, values, index, healthy)

    def nothing(self, plan: Plan) -> Any:
        """The outputs of a phase that isn't due, in the structure of one that is."""
        return self.at(plan, lambda: cut(_empty(plan), self.microbatches))

    def _compute(self, plan: Plan, phase: Compute, values: Batch, index: tf.Tensor, _: tf.Tensor) -> Any:
        def forward(values: Batch, index: tf.Tensor) -> dict[str, tf.Tensor]:
            made = compute(
                phase.fn,
                cut(values, plan.microbatches),
                self.rng_here(plan, index),
                replicas=self.replicas_of(plan),
                name=plan.name,
                specs=plan.outputs,
                sum_over_replicas=self._summing(plan),
            )
            return cut(made, self.microbatches)

        def microbatch(values: Batch, index: tf.Tensor, m: tf.Tensor, outputs: Batch) -> dict[str, tf.Tensor]:
            rng = at_microbatch(self.rng_here(plan, index), m, plan.rows, self.exchange.replicas)
            with summing_over_replicas(self.exchange.sum_statistics(plan.name)):
                made = phase.fn({key: x[m] for key, x in cut(values, plan.microbatches).items()}, rng)
            return _written(outputs, m, made)

        if self._together(plan):
            start = self.exchange.run(lambda: _empty(plan))
            made = _loop(plan, lambda m, so_far: self.exchange.run(microbatch, values, index, m, so_far), start)
            return self.exchange.run(lambda x: cut(x, self.microbatches), made)
        if plan.name not in self._gone_through or phase.every > 1:  # in a condition nothing can be kept for later
            return self.at(plan, forward, values, index)

        def recorded(values: Batch, index: tf.Tensor) -> dict[str, tf.Tensor]:
            with tf.GradientTape(persistent=True) as tape:
                outputs = forward(values, index)
            self.recorded.setdefault(plan.name, {})[replica_here()] = Recorded(tape, outputs)
            return outputs

        return self.at(plan, recorded, values, index)

    def _history(self, plan: Plan, phase: Compute, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        with tf.device(self.exchange.device):
            whole = {key: x[0] for key, x in cut(values, 1).items()}
            outputs, state = phase.fn(whole, self.rng_here(plan, index))
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

    def _update(self, plan: Plan, phase: Update, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        layers = Statistics()
        assert plan.loss
        weighted = plan.loss.weighted

        def sums(values: Batch, index: tf.Tensor) -> Any:
            nonlocal layers
            accumulated, outputs = accumulate_gradients(
                phase.loss,
                self.optimizers[plan.name].parameters,
                cut(values, plan.microbatches),
                self.rng_here(plan, index),
                replicas=self.replicas_of(plan),
                name=plan.name,
                spec=plan.loss,
                sum_over_replicas=self._summing(plan),
            )
            layers = accumulated.layers
            return accumulated.additive, cut(outputs, self.microbatches)

        def microbatch(values: Batch, index: tf.Tensor, m: tf.Tensor, so_far: Additive, outputs: Batch) -> Any:
            nonlocal layers
            parts = self.parts(plan, phase)
            more, made = parts.differentiate(cut(values, plan.microbatches), m, self.rng_here(plan, index))
            layers = parts.layers
            return tf.nest.map_structure(tf.add, so_far, more), _written(outputs, m, made)

        def write(additive: Additive, healthy: tf.Tensor) -> Any:
            return self.write(plan, phase, Accumulated(additive, weighted, layers), healthy)

        def replica(values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
            additive, outputs = self.compiled(plan, sums)(values, index)
            return (*write(additive, healthy), outputs)

        if self._together(plan):
            start = self.exchange.run(lambda: (self.parts(plan, phase).nothing(), _empty(plan)))
            additive, made = _loop(
                plan, lambda m, so_far: self.exchange.run(microbatch, values, index, m, *so_far), start
            )
            outputs = self.exchange.run(lambda x: cut(x, self.microbatches), made)
            healthy, figures = self.exchange.run(write, additive, healthy)
        elif plan.everywhere:
            healthy, figures, outputs = self.exchange.run(replica, values, index, healthy)
        else:
            additive, outputs = self.at(plan, self.compiled(plan, sums), values, index)
            healthy, figures = self.where_it_lives(plan, write, additive, healthy)
        return (*self.exchange.first((healthy, figures)), outputs)

    # --- where -------------------------------------------------------------------------------------------------------

    def at(self, plan: Plan, fn: Callable[..., Any], *args: Any) -> Any:
        """`fn` where the phase runs."""
        if plan.everywhere:
            return self.exchange.run(fn, *args)
        with tf.device(self.exchange.device):
            return fn(*args)

    def where_it_lives(self, plan: Plan, write: Callable[..., Any], *args: Any) -> Any:
        """`write` where the phase's variables are: on every replica, or on the one device that they are kept on."""
        parameters = self.optimizers[plan.name].parameters.values()
        if any(id(variable) in self.alone for variable in parameters):
            with tf.device(self.exchange.device):
                return write(*args)
        self.exchange.note_broadcast(args, plan.name)
        return self.exchange.run(write, *args)

    def inputs_of(self, plan: Plan, placed: Mapping[str, Placed]) -> dict[str, Any]:
        """What a phase reads, where it runs."""
        return {key: self._input(plan, key, placed[key]) for key in plan.reads}

    def _input(self, plan: Plan, key: str, value: Placed) -> Any:
        if value.everywhere == plan.everywhere:
            return value.value
        if not is_shape_only(plan, key):
            arrived = self._arrived.get(key)
            if arrived is None:
                arrived = moved(value, everywhere=plan.everywhere, exchange=self.exchange, phase=plan.name)
            if plan.phase.every == 1:  # else a later phase couldn't reach into the condition
                self._arrived[key] = arrived
            return arrived
        # A shape needn't be sent.
        part = self.exchange.first(value.value)
        rows = plan.rows * plan.microbatches // self.microbatches
        return self.at(plan, lambda: tf.zeros([self.microbatches, rows, *part.shape[2:]], part.dtype))

    def replicas_of(self, plan: Plan) -> int:
        """Among how many its microbatches are shared out."""
        return self.exchange.replicas if plan.everywhere else 1

    # --- randomness --------------------------------------------------------------------------------------------------

    def rng_of(self, phase: Phase, index: tf.Tensor) -> Rng:
        """The random numbers of `phase` in step `index`."""
        return self.rng.fold(index).fold(phase.name)

    def rng_here(self, plan: Plan, index: tf.Tensor) -> Rng:
        """At the first row, where the phase runs, of its first microbatch."""
        runs = self.microbatches // plan.microbatches  # of the trainer's microbatches make one of the phase's
        rows = plan.rows // runs
        first = 0
        if plan.everywhere:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group * rows
        stride = rows * self.replicas_of(plan)
        return self.rng_of(plan.phase, index)._replace(first_row=first, num_rows=plan.rows, runs=runs, stride=stride)

    # --- microbatches ------------------------------------------------------------------------------------------------

    def parts(self, plan: Plan, phase: Update) -> Microbatches:
        """The phase's microbatches, to differentiate."""
        assert plan.loss
        return Microbatches(
            phase.loss,
            self.optimizers[plan.name].parameters,
            name=plan.name,
            spec=plan.loss,
            microbatches=plan.microbatches,
            rows=plan.rows,
            replicas=self.replicas_of(plan),
            sum_over_replicas=self._summing(plan),
            sparse=False,
        )

    def compiled(self, plan: Plan, arithmetic: Callable[..., Any]) -> Callable[..., Any]:
        """With several replicas the arithmetic alone can be compiled, not the collective after it."""
        if not self.compile or self.exchange.replicas == 1 or plan.phase.mixes_rows:
            return arithmetic
        return tf.function(arithmetic, autograph=False, jit_compile=True)

    def write(self, plan: Plan, phase: Update, accumulated: Accumulated, healthy: tf.Tensor) -> tuple[tf.Tensor, Sums]:
        """The end of an update, in replica context or where one-device variables live."""
        if plan.everywhere:
            accumulated = reduce_over_replicas(accumulated, self.exchange, plan.name)
        fused = not self.compile or self.exchange.replicas > 1
        return write_update(phase, self.optimizers[plan.name], accumulated, healthy, fused=fused)

    def _summing(self, plan: Plan) -> SumOverReplicas | None:
        return self.exchange.sum_statistics(plan.name) if plan.everywhere else None

    def _together(self, plan: Plan) -> bool:
        """Whether the replicas take each microbatch together, because a collective can't stand in their own loops."""
        return plan.phase.mixes_rows and plan.everywhere and self.exchange.replicas > 1 and plan.microbatches > 1


def _loop(plan: Plan, one: Callable[[tf.Tensor, Any], Any], start: Any) -> Any:
    """Over the microbatches, around `strategy.run`."""

    def body(m: tf.Tensor, so_far: Any) -> Any:
        return m + 1, one(m, so_far)

    return tf.while_loop(lambda m, _: m < plan.microbatches, body, (tf.constant(0), start))[1]


def _empty(plan: Plan) -> dict[str, tf.Tensor]:
    """Outputs before there are any."""
    return {key: tf.zeros([plan.microbatches, *spec.shape], spec.dtype) for key, spec in plan.outputs.items()}


def _written(outputs: Batch, m: tf.Tensor, made: Batch) -> dict[str, tf.Tensor]:
    """`outputs` with those of microbatch `m` in their place."""
    return {key: tf.tensor_scatter_nd_update(x, [[m]], made[key][tf.newaxis]) for key, x in outputs.items()}
