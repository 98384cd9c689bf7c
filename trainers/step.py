"""From a task's phases to one exact training step.

A value on its way through the phases is `[microbatches, rows, ...]`; step functions see `[rows, ...]`. What they return
is only ever *summed* here (over rows, microbatches and replicas) and divided once, by the total weight, so losses,
gradients and metrics are exact for ragged weights and don't depend on how a batch was cut up.

The pieces are public, for those who write their own loop:

    accumulated, outputs = accumulate_gradients(loss, optimizer.parameters, values, rng)
    accumulated = reduce_over_replicas(accumulated)  # the one reduction of an update, in replica context
    optimizer.apply(accumulated.mean_gradients())
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.errors import ConfigurationError
from core.loss_spec import (
    LossSpec,
    Sums,
    checked,
    describe_loss,
    describe_outputs,
    microbatch_specs,
    weighted_sums,
    zeros,
)
from core.module import named_variables
from core.optimizers import Optimizer
from core.random import Rng
from core.statistics import Statistics, commit, refreshed
from core.task import Batch, Compute, Loss, Phase, Update


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """What an update knows of its batch, all of it additive."""

    gradients: Mapping[str, tf.Tensor]
    sums: Sums
    weighted: bool  # if not, the total weight is just a count, known beforehand, and the gradients are divided already
    statistics: Any = dataclasses.field(default_factory=dict)  # sums by layer, as `Statistics` keeps them
    layers: Statistics = dataclasses.field(default_factory=Statistics)  # knows which layer is which

    def mean_gradients(self) -> Mapping[str, tf.Tensor]:
        """The gradients of the weighted mean loss; zero where the total weight is."""
        if not self.weighted:
            return self.gradients
        scale = tf.math.divide_no_nan(1.0, self.sums["weight"])
        return {path: gradient * tf.cast(scale, gradient.dtype) for path, gradient in self.gradients.items()}


class StepResult(NamedTuple):
    """The figures of one step."""

    healthy: tf.Tensor  # false where a loss or gradient wasn't finite; after it nothing was written
    sums: Mapping[str, Sums]  # by phase; zero for a phase that wasn't due


def accumulate_gradients(
    loss: Callable[[Batch, Rng], Loss],
    variables: Mapping[str, tf.Variable],
    values: Batch,
    rng: Rng,
    *,
    replicas: int = 1,
    name: str = "loss",
    spec: LossSpec | None = None,
) -> tuple[Accumulated, dict[str, tf.Tensor]]:
    """Sums of gradients and figures over the microbatches, and the loss's `outputs` as [microbatches, rows, ...].

    `rng` stands at the first microbatch; one global microbatch further on, its rows are `replicas` times its own on.
    """
    microbatches, rows = next(iter(values.values())).shape[:2]
    spec = spec or describe_loss(loss, microbatch_specs(values), name)

    layers = Statistics()

    def one(m: Any) -> Any:
        nonlocal layers
        here = rng._replace(first_row=rng.first_row + m * (rows * replicas), num_rows=rows)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(variables.values()))
            result = checked(loss({key: x[m] for key, x in values.items()}, here), name, rows)
            objective, sums = weighted_sums(result)
            if not spec.weighted:
                # A factor on one number instead of on every gradient.
                objective /= float(result.per_example.shape.num_elements() * microbatches * replicas)
        gradients = tape.gradient(objective, dict(variables))
        _refuse_missing(gradients, name)
        layers = result.statistics or layers
        dense = {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}
        return [dense, sums, dict(layers.sums)], result.outputs

    if microbatches == 1:
        (gradients, sums, statistics), outputs = one(0)
        outputs = {key: x[tf.newaxis] for key, x in outputs.items()}
        return Accumulated(gradients, sums, spec.weighted, statistics, layers), outputs

    nothing = [
        {path: tf.zeros(v.shape, v.dtype) for path, v in variables.items()},
        spec.zero_sums(),
        zeros(spec.statistics),
    ]
    stores = {key: tf.TensorArray(o.dtype, microbatches, element_shape=o.shape) for key, o in spec.outputs.items()}

    def body(m: tf.Tensor, so_far: Any, stores: Mapping[str, tf.TensorArray]) -> Any:
        more, outputs = one(m)
        stores = {key: store.write(m, outputs[key]) for key, store in stores.items()}
        return m + 1, tf.nest.map_structure(tf.add, so_far, more), stores

    start = (tf.constant(0), nothing, stores)
    _, (gradients, sums, statistics), stores = tf.while_loop(lambda m, *_: m < microbatches, body, start)
    outputs = {key: store.stack() for key, store in stores.items()}
    return Accumulated(gradients, sums, spec.weighted, statistics, layers), outputs


def reduce_over_replicas(accumulated: Accumulated) -> Accumulated:
    """Sums gradients and figures over the replicas, in one go. For use in replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return accumulated
    additive = (accumulated.gradients, accumulated.sums, accumulated.statistics)
    gradients, sums, statistics = context.all_reduce(tf.distribute.ReduceOp.SUM, additive)
    return dataclasses.replace(accumulated, gradients=gradients, sums=sums, statistics=statistics)


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
    ):
        self.phases, self.optimizers, self.strategy, self.compile = phases, optimizers, strategy, compile
        self.rng = Rng.from_seed(seed).fold("train")
        self.specs: dict[str, LossSpec] = {}
        self._output_specs: dict[str, Mapping[str, tf.TensorSpec]] = {}
        self._reads: dict[str, tuple[str, ...]] = {}
        known, makers = dict(batch_spec), dict[str, Phase]()
        for phase in phases:
            # A phase may read what is there whenever it is due: what phases made whose `every` divides its own.
            elsewhere = {
                key: f"phase `{maker.name}` makes it only every {maker.every} steps (give both the same `every`)"
                for key, maker in makers.items()
                if phase.every % maker.every
            }
            spec = {key: known[key] for key in known if key not in elsewhere}
            self._reads[phase.name] = tuple(spec)
            if isinstance(phase, Update):
                self.specs[phase.name] = describe_loss(phase.loss, spec, phase.name, elsewhere)
                outputs: Mapping[str, tf.TensorSpec] = self.specs[phase.name].outputs
            else:
                outputs = describe_outputs(phase.fn, spec, phase.name, elsewhere)
            for key in outputs:
                if key in known:
                    origin = f"phase `{makers[key].name}`" if key in makers else "the source"
                    raise ConfigurationError(
                        f"phase `{phase.name}` makes `{key}`, which comes from {origin} already: give it another name."
                    )
                makers[key] = phase
            self._output_specs[phase.name] = outputs
            known |= outputs

    def __call__(self, values: Batch, index: tf.Tensor) -> StepResult:
        """Runs every phase that is due."""
        values, sums, healthy = dict(values), {}, tf.constant(True)
        for phase in self.phases:
            mine = self.inputs_of(phase, values)
            if phase.every == 1:
                healthy, sums[phase.name], outputs = self._run(phase, mine, index, healthy)
            else:
                # Around `strategy.run`, not inside it: a collective inside a replica's `tf.cond` raises.
                healthy, sums[phase.name], outputs = tf.cond(
                    tf.equal(index % phase.every, 0),
                    lambda p=phase, v=mine, h=healthy: self._run(p, v, index, h),
                    lambda p=phase, v=mine, h=healthy: (h, *self._nothing(p, v)),
                )
            values |= outputs
        return StepResult(healthy, {name: sums[name] for name in self.specs})

    def inputs_of(self, phase: Phase, values: Batch) -> dict[str, tf.Tensor]:
        """What `phase` may read of the values made so far."""
        return {key: values[key] for key in self._reads[phase.name]}

    def rng_of(self, phase: Phase, index: tf.Tensor) -> Rng:
        """The random numbers of `phase` in step `index`: they hang on nothing else but the run's seed."""
        return self.rng.fold(index).fold(phase.name)

    def _run(self, phase: Phase, values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
        replicas = self.strategy.num_replicas_in_sync

        def replica(values: Batch, index: tf.Tensor, healthy: tf.Tensor) -> Any:
            rows = next(iter(values.values())).shape[1]
            place = tf.distribute.get_replica_context().replica_id_in_sync_group
            rng = self.rng_of(phase, index)._replace(first_row=place * rows, num_rows=rows)
            if isinstance(phase, Compute):
                specs = self._output_specs[phase.name]
                return healthy, {}, compute(phase.fn, values, rng, replicas=replicas, name=phase.name, specs=specs)
            optimizer, spec = self.optimizers[phase.name], self.specs[phase.name]
            accumulated, outputs = accumulate_gradients(
                phase.loss, optimizer.parameters, values, rng, replicas=replicas, name=phase.name, spec=spec
            )
            accumulated = reduce_over_replicas(accumulated)
            gradients = accumulated.mean_gradients()
            # The update waits for the loss alone, known before the gradients are: waiting for the check of those would
            # cost small models a tenth of their speed. A gradient that isn't finite ends the run all the same.
            written = healthy & tf.math.is_finite(accumulated.sums["loss"])
            healthy = written & all_finite(gradients)
            if spec.weighted:
                # No weight is no evidence: the run goes on without an update. Less than none is a mistake.
                healthy &= accumulated.sums["weight"] >= 0.0
                written &= accumulated.sums["weight"] > 0.0
            value = tf.math.divide_no_nan(accumulated.sums["loss"], accumulated.sums["weight"])
            optimizer.apply(gradients, value=value, commit=written, fused=not self.compile)
            commit_untrained(phase, accumulated, written)
            return healthy, accumulated.sums, outputs

        healthy, sums, outputs = self.strategy.run(replica, args=(values, index, healthy))
        first = tf.nest.map_structure(lambda x: self.strategy.experimental_local_results(x)[0], (healthy, sums))
        return (*first, outputs)

    def _nothing(self, phase: Phase, values: Batch) -> Any:
        """The results of a phase that isn't due, in the structure of one that is."""
        microbatches = next(iter(values.values())).shape[0]
        outputs = {
            key: tf.zeros([microbatches, *spec.shape], spec.dtype)
            for key, spec in self._output_specs[phase.name].items()
        }
        return (self.specs[phase.name].zero_sums() if phase.name in self.specs else {}), outputs


def compute(
    fn: Callable[[Batch, Rng], Mapping[str, tf.Tensor]],
    values: Batch,
    rng: Rng,
    *,
    replicas: int = 1,
    name: str = "compute",
    specs: Mapping[str, tf.TensorSpec] | None = None,
) -> dict[str, tf.Tensor]:
    """`fn` over each microbatch; its outputs are [microbatches, rows, ...]. `rng` is as in `accumulate_gradients`."""
    microbatches, rows = next(iter(values.values())).shape[:2]

    def one(m: Any) -> dict[str, tf.Tensor]:
        here = rng._replace(first_row=rng.first_row + m * (rows * replicas), num_rows=rows)
        return dict(fn({key: x[m] for key, x in values.items()}, here))

    if microbatches == 1:
        return {key: x[tf.newaxis] for key, x in one(0).items()}
    specs = specs or describe_outputs(fn, microbatch_specs(values), name)
    return tf.map_fn(one, tf.range(microbatches), fn_output_signature=dict(specs))


def commit_untrained(phase: Update, accumulated: Accumulated, where: tf.Tensor) -> None:
    """Moves averages and derived state of the modules that `phase` trains; those of others it only read."""
    modules = [phase.trains] if isinstance(phase.trains, tf.Module) else list(phase.trains)
    values = accumulated.layers.averages(accumulated.statistics)
    for module in modules:
        values |= refreshed(module)  # from the parameters as the update left them
    own = {variable.ref() for module in modules for variable in named_variables(module).values()}
    commit({reference: value for reference, value in values.items() if reference in own}, keep=~where)


def all_finite(gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """One flag for all gradients: a sum is finite only if each term is."""
    # Half precision would overflow in a long sum, and float64 when made narrower.
    wide = tf.float64 if any(g.dtype == tf.float64 for g in gradients.values()) else tf.float32
    sums = [tf.reduce_sum(g if g.dtype.size >= 4 else tf.cast(g, wide)) for g in gradients.values()]
    return tf.math.is_finite(tf.add_n([tf.cast(x, wide) for x in sums]))


def _refuse_missing(gradients: Mapping[str, tf.Tensor | None], name: str) -> None:
    missing = [path for path, gradient in gradients.items() if gradient is None]
    if missing:
        raise ValueError(
            f"phase `{name}` trains {', '.join(f'`{path}`' for path in missing)}, but its loss doesn't depend on "
            f"{'it' if len(missing) == 1 else 'them'} (the gradient is None). Use "
            f"{'it' if len(missing) == 1 else 'them'} in the loss, or leave {'it' if len(missing) == 1 else 'them'} "
            "out of `trains`. `tf.stop_gradient`, an integer cast or `argmax` on the way also cuts a gradient off."
        )
