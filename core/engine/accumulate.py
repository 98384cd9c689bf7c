"""The accumulation loop (`Sweep`): takes the microbatches of one phase in turn, and accumulates their results.

Values between phases are `[microbatches, rows, ...]`. A step function gets `[rows, ...]`. The loop sums *additive*
results (gradients, metrics, statistics). It stacks *row* results (outputs, gradients of inputs).
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.casts import Cast, casting_once, made_casts
from core.distribution.exchange import Exchange
from core.engine.curvature import squared
from core.engine.inspect_phase import Specs, describe_loss, describe_outputs, microbatch_specs, zeros
from core.engine.layout import shape_of
from core.engine.loss_scale import Factor, LossScale
from core.engine.microbatch import Additive, Asked, Microbatch, Rows
from core.engine.sparse_slices import joined, scaled
from core.precision import AS_GIVEN, Narrowing, Precision, widened
from core.random import Rng
from core.task import Batch, Loss
from core.task.loss import Sums
from core.task.statistics import Statistics

SPARSE_FROM = 1024  # rows of a variable; for fewer, tracing a gradient to see whether it is sparse isn't worth it


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """The results of one update, accumulated over all microbatches of its batch."""

    additive: Additive
    divided: bool  # whether the gradients are the mean's already: without weights, the divisor is known before
    factor: tf.Tensor | None = None  # by which the gradients are too large, if the loss was scaled: a power of two
    layers: Statistics = dataclasses.field(default_factory=Statistics)  # knows the layer of each sum
    sampled: bool = False  # whether the curvature's sums are gradients on drawn labels

    @property
    def gradients(self) -> Mapping[str, Any]:
        """Returns the summed gradients, `{path of variable: gradient}`."""
        return self.additive.gradients

    @property
    def sums(self) -> Sums:
        """Returns the summed weight, loss and metrics, `{"weight": ..., "loss": ..., metric: ...}`."""
        return self.additive.sums

    def mean_gradients(self) -> Mapping[str, Any]:
        """Returns the gradients of the weighted mean loss. With a total weight of 0, they are zeros."""
        return self._mean(self.gradients)

    def mean_curvature(self) -> Mapping[str, Any]:
        """Returns the estimated diagonal of the mean loss's Hessian; empty if it wasn't asked for."""
        found = self._mean(self.additive.curvature)
        return squared(widened(found), self.sums["weight"]) if self.sampled else found

    def _mean(self, sums: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.factor is not None:
            # Gradients of float16 parameters, too: divided in float16, they would underflow.
            sums = _scaled(widened(sums), 1.0 / self.factor)
        return sums if self.divided else _scaled(sums, tf.math.divide_no_nan(1.0, self.sums["weight"]))


@dataclasses.dataclass
class Sweep:
    """The accumulation loop of one phase, on one replica or device."""

    one: Microbatch
    outputs: Specs  # of one microbatch
    compiled: bool = False  # whether XLA compiles each microbatch separately, but not the loop over them
    casts: Sequence[Cast] = ()  # of weights, made once

    @property
    def microbatches(self) -> int:
        return self.one.number

    def __call__(self, values: Batch, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
        """Loops over the microbatches on one replica. `rng` is at the first row of the first microbatch."""
        with casting_once(self.casts, made_casts(self.casts)):
            return self._all(values, rng, asked)

    def _all(self, values: Batch, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
        if self.microbatches == 1:
            added, rows = self.one(values, 0, rng, asked)
            return added, tf.nest.map_structure(lambda x: tf.expand_dims(x, 0), rows)
        slices = self._slice_specs(values, asked)
        inputs = {key: tf.TensorSpec(values[key].shape[1:], values[key].dtype) for key in asked.inputs}
        arrays = tf.nest.map_structure(
            lambda spec: tf.TensorArray(spec.dtype, self.microbatches, element_shape=spec.shape),
            Rows(self._made(asked), inputs, slices),
        )

        def add(m: tf.Tensor, so_far: Any) -> Any:
            added, rows = _apart(*self._taken(values, m, rng, asked), slices)
            return (
                tf.nest.map_structure(tf.add, so_far[0], added),
                tf.nest.map_structure(lambda array, x: array.write(m, x), so_far[1], rows),
            )

        added, arrays = self._loop(add, (self._initial_sums(asked, slices), arrays))
        rows = tf.nest.map_structure(lambda array: array.stack(), arrays)
        # In the variables' order, which all replicas and the ledger share.
        gradients = {
            path: joined(rows.slices[path], v.shape) if path in slices else added.gradients[path]
            for path, v in asked.variables.items()
        }
        return added._replace(gradients=gradients), rows._replace(slices={})

    def around(
        self, run: Callable[..., Any], values: Any, index: Any, rng_at: Callable[[Any], Rng], asked: Asked
    ) -> tuple[Additive, Rows]:
        """Runs each microbatch on all replicas at once with `run`: a replica's own loop can't contain collectives."""

        def start() -> Any:
            specs = self._made(asked).items()
            empty = {key: tf.zeros([self.microbatches, *spec.shape], spec.dtype) for key, spec in specs}
            return self._initial_sums(asked), Rows(empty, {})

        def one(m: tf.Tensor, values: Batch, index: Any, made: list[tf.Tensor], so_far: Any) -> Any:
            with casting_once(self.casts, made):
                added, rows = self.one(values, m, rng_at(index), asked)
            return (
                tf.nest.map_structure(tf.add, so_far[0], added),
                tf.nest.map_structure(
                    lambda whole, x: tf.tensor_scatter_nd_update(whole, [[m]], tf.expand_dims(x, 0)), so_far[1], rows
                ),
            )

        casts = run(lambda: made_casts(self.casts))
        return self._loop(lambda m, so_far: run(one, m, values, index, casts, so_far), run(start))

    def _loop(self, add: Callable[[tf.Tensor, Any], Any], start: Any) -> Any:
        def body(m: tf.Tensor, so_far: Any) -> Any:
            return m + 1, add(m, so_far)

        # One at a time: in parallel they would need the memory that microbatches save. The number is given twice,
        # because XLA must know it for gradients through the loop.
        most, start = self.microbatches, (tf.constant(0), start)
        return tf.while_loop(lambda m, _: m < most, body, start, parallel_iterations=1, maximum_iterations=most)[1]

    def _taken(self, values: Batch, m: tf.Tensor, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
        """Processes microbatch `m`. If `compiled`, an XLA program does it."""
        if not self.compiled:
            return self.one(values, m, rng, asked)
        one = tf.function(lambda values, m: self.one(values, m, rng, asked), autograph=False, jit_compile=True)
        added, rows = one(values, m)
        return added, rows

    def _made(self, asked: Asked) -> dict[str, tf.TensorSpec]:
        return dict(self.outputs) if asked.cotangents is None else {}

    def _initial_sums(self, asked: Asked, slices: Collection[str] = ()) -> Additive:
        """Returns sums of zeros, without the gradients of the paths in `slices`, which are stacked, not summed."""
        gradients = {path: tf.zeros(v.shape, v.dtype) for path, v in asked.variables.items() if path not in slices}
        if self.one.loss is None:
            return Additive(gradients, {}, {})
        curvature = {path: tf.zeros(v.shape, v.dtype) for path, v in asked.variables.items() if asked.curvature_due}
        return Additive(gradients, self.one.loss.zero_sums(), zeros(self.one.loss.statistics), curvature)

    def _slice_specs(self, values: Batch, asked: Asked) -> dict[str, tuple[tf.TensorSpec, tf.TensorSpec]]:
        """Traces one microbatch to find gradients that stay slices: `{path: (spec of values, spec of indices)}`."""
        large = any(v.shape.rank and v.shape[0] >= SPARSE_FROM for v in asked.variables.values())
        if not self.one.sparse or self.one.replicas == 1 or not large:
            return {}
        found = {}

        def trace(values: Batch) -> None:
            for path, x in self.one(values, 0, Rng.from_seed(0, step=0, progress=0.0), asked)[0].gradients.items():
                if isinstance(x, tf.IndexedSlices):
                    number = x.indices.shape.num_elements()
                    shape = [number, *asked.variables[path].shape[1:]]
                    found[path] = (tf.TensorSpec(shape, x.dtype), tf.TensorSpec([number], tf.int64))

        specs = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in values.items()}
        tf.function(trace, autograph=False).get_concrete_function(specs)
        return found


def accumulate_gradients(
    loss: Callable[[Batch, Rng], Loss],
    variables: Mapping[str, tf.Variable],
    values: Batch,
    rng: Rng,
    *,
    exchange: Exchange | None = None,
    name: str = "loss",
    precision: str | Narrowing = "float32",
    loss_scale: LossScale | None = None,
    clip_examples: float | None = None,
    curvature_due: Callable[[], tf.Tensor] | None = None,
    sampled_loss: Callable[[Batch, Rng], Loss] | None = None,
) -> tuple[Accumulated, dict[str, tf.Tensor]]:
    """Sums gradients and metrics over the microbatches; returns the sums, and the loss's `outputs` per microbatch.

    The loss computes in `precision`: a dtype, or a phase's casts. Float16 needs a `loss_scale`, by which
    `Accumulated.mean_gradients` divides. `rng` is at the first row of the first microbatch. If several replicas share a
    batch, each calls this with an `exchange`. A loss that mixes rows then needs a single microbatch, because a
    replica's loop can't contain collectives. `clip_examples` is the largest norm of one microbatch's gradient, which
    needs one example per microbatch. With `curvature_due` (`Optimizer.curvature_due`), the Hessian's diagonal is
    estimated too, for `Optimizer.take_curvature`, with a second gradient or that of a `sampled_loss`.
    """
    microbatches, rows = shape_of(values)
    if clip_examples is not None and rows != 1:
        raise ValueError(
            f"`clip_examples` is {clip_examples!r}, but a microbatch has {rows} examples; give `values` of shape "
            "[examples, 1, ...]."
        )
    if loss_scale is not None and isinstance(precision, str) and precision != "float16":
        raise ValueError(
            f"`accumulate_gradients` has a `loss_scale` with `precision={precision!r}`, whose gradients need none: "
            'leave `loss_scale` out, or give `precision="float16"`.'
        )
    context = tf.distribute.get_replica_context()
    if exchange is None and context is not None and context.num_replicas_in_sync > 1:
        raise ValueError(
            f"`accumulate_gradients` is called on {context.num_replicas_in_sync} replicas without an `exchange`, and "
            "would take the rows of each for the whole batch: give it `exchange=`, the one that reduces."
        )
    replicas = exchange.replicas if exchange else 1
    specs = microbatch_specs(values)
    narrowing = precision if isinstance(precision, Narrowing) else Precision(precision).narrowing(name, specs)
    spec = describe_loss(loss, specs, name, replicas=replicas, narrowing=narrowing)
    if spec.access.mixes and replicas > 1 and microbatches > 1:
        raise ValueError(
            f"`{name}` mixes the rows of {replicas} replicas in {microbatches} microbatches, but no collective can "
            "stand in a replica's loop: give all rows as one microbatch, or let a `TrainStep` take the microbatches."
        )
    one = Microbatch(
        loss, name, microbatches, rows, spec, exchange, sparse=True, narrowing=narrowing, clip_examples=clip_examples
    )
    factor = Factor.of(loss_scale, spec, microbatches * replicas) if loss_scale else None
    asked = Asked(name, variables, factor=factor, curvature_due=curvature_due, sampled_loss=sampled_loss)
    added, made = Sweep(one, spec.outputs, casts=spec.access.casts)(values, rng, asked)
    known = factor and factor.read()
    found = Accumulated(added, not spec.weighted, known, one.layers, sampled=sampled_loss is not None)
    return found, dict(made.outputs)


def compute(
    fn: Callable[[Batch, Rng], Mapping[str, tf.Tensor]],
    values: Batch,
    rng: Rng,
    *,
    name: str = "compute",
    narrowing: Narrowing = AS_GIVEN,
) -> dict[str, tf.Tensor]:
    """Calls `fn` on each microbatch, with the casts of `narrowing`; returns `{key: [microbatches, rows, ...]}`."""
    microbatches, rows = shape_of(values)
    outputs = {} if microbatches == 1 else describe_outputs(fn, microbatch_specs(values), name, narrowing=narrowing)[0]
    one = Microbatch(fn, name, microbatches, rows, narrowing=narrowing)
    return dict(Sweep(one, outputs)(values, rng, Asked())[1].outputs)


def _scaled(gradients: Mapping[str, Any], x: tf.Tensor) -> dict[str, Any]:
    return {path: scaled(gradient, tf.cast(x, gradient.dtype)) for path, gradient in gradients.items()}


def _apart(added: Additive, rows: Rows, paths: Collection[str]) -> tuple[Additive, Rows]:
    """Moves the gradients at `paths` from `added` to `rows.slices`, as pairs (values, indices)."""
    gradients = {path: x for path, x in added.gradients.items() if path not in paths}
    sparse = {path: added.gradients[path] for path in paths}
    slices = {path: (x.values, tf.cast(tf.reshape(x.indices, [-1]), tf.int64)) for path, x in sparse.items()}
    return added._replace(gradients=gradients), rows._replace(slices=slices)
