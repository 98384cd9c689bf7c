"""The accumulation loop (`Sweep`): runs one phase's function on each microbatch, and computes gradients.

Values between phases are `[microbatches, rows, ...]`. A step function gets `[rows, ...]`. The loop sums *additive*
results (gradients, metrics, statistics). It stacks *row* results (outputs, gradients of inputs). A loss without weights
is divided by the number of examples before differentiation. With weights, the gradients are divided by the total weight
after their reduction over replicas. So results are exact however a batch is split.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.casts import Cast, casting_once, made_casts
from core.distribution.exchange import Exchange
from core.distribution.shared_rows import mixing
from core.engine.curvature import estimate, gradients_if, random_signs, squared
from core.engine.inspect_phase import LossSpec, Specs, describe_loss, describe_outputs, microbatch_specs, zeros
from core.engine.layout import shape_of
from core.engine.loss_scale import Factor, LossScale
from core.engine.noise_scale import square_of_part
from core.engine.sparse_slices import joined, scaled
from core.optimizers.clipping import clipped_together
from core.precision import AS_GIVEN, Narrowing, Precision, widened
from core.random import Rng
from core.task import Batch, Loss
from core.task.guards import refuse_missing_gradients
from core.task.loss import NOISE_SCALE, Sums, checked, weighted_sums
from core.task.statistics import Statistics

SPARSE_FROM = 1024  # rows of a variable; for fewer, tracing a gradient to see whether it is sparse isn't worth it


class Additive(NamedTuple):
    """Results that are summed over microbatches and replicas."""

    gradients: Mapping[str, Any]  # tensors, or `IndexedSlices` if they are smaller to send
    sums: Sums
    statistics: Any  # sums by layer, as `Statistics` keeps them
    curvature: Mapping[str, tf.Tensor] = {}  # by path: for an estimate of the Hessian's diagonal, if it was asked for


class Rows(NamedTuple):
    """Results with one entry for each row of the batch."""

    outputs: Mapping[str, tf.Tensor]
    gradients: Mapping[str, tf.Tensor]  # of the requested inputs
    slices: Mapping[str, tuple[tf.Tensor, tf.Tensor]] = {}  # values and indices of sparse gradients, by path


class Asked(NamedTuple):
    """The requested gradients: of `variables`, summed over rows, or of `inputs`, one for each row.

    With `cotangents`, a vector-Jacobian product is computed: the outputs of a `Compute` are differentiated, not a loss.
    """

    by: str = ""  # the update that requests them
    variables: Mapping[str, tf.Variable] = {}
    inputs: Sequence[str] = ()
    cotangents: Batch | None = None
    factor: Factor | None = None  # of the loss, if it computes in float16
    curvature_due: Callable[[], tf.Tensor] | None = None  # whether to estimate the curvature; zeros if not
    sampled_loss: Callable[[Batch, Rng], Loss] | None = None  # by whose gradient; by default, a second one of the loss


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

    fn: Callable[[Batch, Rng], Any]
    name: str
    microbatches: int
    rows: int  # of one microbatch, here
    outputs: Specs  # of one microbatch
    loss: LossSpec | None = None  # None for a `Compute`
    exchange: Exchange | None = None  # between the replicas that split the rows
    sparse: bool = False  # whether gradients that touch few rows stay slices
    compiled: bool = False  # whether XLA compiles each microbatch separately, but not the loop over them
    narrowing: Narrowing = AS_GIVEN  # the casts of a microbatch
    casts: Sequence[Cast] = ()  # of weights, made once
    clip_examples: float | None = None  # the largest norm of an example's gradient; a microbatch is then one example
    splits: int = 1  # of so many microbatches consists one of the trainer's, if that is more than one
    layers: Statistics = dataclasses.field(default_factory=Statistics)  # of the last call: knows the layer of each sum

    @property
    def replicas(self) -> int:
        return self.exchange.replicas if self.exchange else 1

    def __call__(self, values: Batch, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
        """Loops over the microbatches on one replica. `rng` is at the first row of the first microbatch."""
        with casting_once(self.casts, made_casts(self.casts)):
            return self._all(values, rng, asked)

    def _all(self, values: Batch, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
        if self.microbatches == 1:
            added, rows = self._one(values, 0, rng, asked)
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
                added, rows = self._one(values, m, rng_at(index), asked)
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
            return self._one(values, m, rng, asked)
        one = tf.function(lambda values, m: self._one(values, m, rng, asked), autograph=False, jit_compile=True)
        added, rows = one(values, m)
        return added, rows

    def _one(self, values: Batch, m: Any, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
        """Calls the phase's function on microbatch `m`, and computes the gradients that `asked` requests."""
        values = {key: tf.gather(x, m) for key, x in values.items()}
        rng = rng._replace(first_row=rng.first_row + self._row(m), num_rows=self.rows)
        inputs = {key: values[key] for key in asked.inputs}
        # Declared here, inside the replica, because a strategy runs each replica in a new thread without this context.
        shared = mixing(self.exchange, self.name, self.rows, rng.runs) if self.exchange else contextlib.nullcontext()
        sampled: Mapping[str, Any] = {}
        if (drawn := asked.sampled_loss) and (due := asked.curvature_due):  # first: `layers` are then those of the loss
            given = self.narrowing.narrowed(values), rng._replace(dtype=self.narrowing.dtype)
            scale = asked.factor.read() if asked.factor else 1.0
            with self.narrowing.computing():
                sampled = gradients_if(due(), lambda: scale * self._sums(drawn(*given))[0], asked.variables)
        second = tf.GradientTape(watch_accessed_variables=False) if asked.curvature_due and not drawn else None
        with self.narrowing.computing(), shared, second or contextlib.nullcontext():
            if second:
                second.watch([*asked.variables.values()])
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*asked.variables.values(), *inputs.values()])
                made = self.fn(self.narrowing.narrowed(values), rng._replace(dtype=self.narrowing.dtype))
                if self.loss is not None:
                    target, added, outputs = self._sums(made)
                    target = target if asked.factor is None else target * asked.factor.read()
                else:
                    target, added, outputs = None, Additive({}, {}, {}), dict(made)
            along, gradients = None, dict[str, Any]()
            if asked.cotangents is not None:
                target = [made[key] for key in asked.cotangents]
                along, outputs = [tf.gather(x, m) for x in asked.cotangents.values()], {}
            if asked.variables:
                gradients = tape.gradient(target, dict(asked.variables), output_gradients=along)
                refuse_missing_gradients(gradients, asked.by)
            if second:
                signs = random_signs(rng, asked.variables)
                slope = tf.add_n(
                    [tf.reduce_sum(tf.convert_to_tensor(gradients[path]) * u) for path, u in signs.items()]
                )
            if inputs:
                inputs = tape.gradient(target, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        if second and asked.curvature_due:
            with self.narrowing.computing():
                added = added._replace(curvature=estimate(second, slope, asked.variables, signs, asked.curvature_due()))
        added = added._replace(curvature=sampled) if sampled else added
        if self.loss and asked.variables and (self.loss.noise_scale or self.clip_examples is not None):
            share = added.sums["weight"] if self.loss.weighted else 1.0 / (self.microbatches * self.replicas)
            divisor = share if asked.factor is None else share * asked.factor.read()
            if self.clip_examples is not None:
                dense = {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}
                gradients = dict(clipped_together(dense, self.clip_examples * divisor))
            if self.loss.noise_scale:
                added = added._replace(sums={**added.sums, NOISE_SCALE: square_of_part(gradients, divisor)})
        sent = {path: self._sent(gradient, asked.variables[path]) for path, gradient in gradients.items()}
        return added._replace(gradients=sent), Rows(outputs, inputs)

    def _row(self, m: Any) -> Any:
        """Returns the first row of microbatch `m`, counted in the global batch from the replica's first row."""
        if self.splits == 1:
            return m * (self.rows * self.replicas)
        return m // self.splits * (self.splits * self.rows * self.replicas) + m % self.splits * self.rows

    def _sums(self, made: Any) -> tuple[tf.Tensor, Additive, Batch]:
        """Splits the `Loss` `made` into the sum to differentiate, the sums to accumulate, and the outputs."""
        assert self.loss
        result: Loss = checked(made, self.name, self.rows)
        objective, sums = weighted_sums(result)
        if not self.loss.weighted:
            # One factor on a scalar instead of on every gradient.
            objective /= float(result.per_example.shape.num_elements() * self.microbatches * self.replicas)
        # The sums come from the replica's own statistics. The threads of replicas alternate at collectives, so an
        # object that they share would contain another replica's sums, without an error.
        layers = result.statistics or Statistics()
        self.layers = layers
        return objective, Additive({}, sums, widened(dict(layers.sums))), dict(result.outputs)

    def _sent(self, gradient: Any, variable: tf.Variable) -> Any:
        """Makes a sparse gradient dense if all replicas together touch at least as many rows as `variable` has."""
        if isinstance(gradient, tf.IndexedSlices) and self.sparse and self.replicas > 1:
            touched = gradient.indices.shape.num_elements()
            if touched and touched * self.microbatches * self.replicas < variable.shape[0]:
                return gradient
        return tf.convert_to_tensor(gradient)

    def _made(self, asked: Asked) -> dict[str, tf.TensorSpec]:
        return dict(self.outputs) if asked.cotangents is None else {}

    def _initial_sums(self, asked: Asked, slices: Collection[str] = ()) -> Additive:
        """Returns sums of zeros, without the gradients of the paths in `slices`, which are stacked, not summed."""
        gradients = {path: tf.zeros(v.shape, v.dtype) for path, v in asked.variables.items() if path not in slices}
        if self.loss is None:
            return Additive(gradients, {}, {})
        curvature = {path: tf.zeros(v.shape, v.dtype) for path, v in asked.variables.items() if asked.curvature_due}
        return Additive(gradients, self.loss.zero_sums(), zeros(self.loss.statistics), curvature)

    def _slice_specs(self, values: Batch, asked: Asked) -> dict[str, tuple[tf.TensorSpec, tf.TensorSpec]]:
        """Traces one microbatch to find gradients that stay slices: `{path: (spec of values, spec of indices)}`."""
        large = any(v.shape.rank and v.shape[0] >= SPARSE_FROM for v in asked.variables.values())
        if not self.sparse or self.replicas == 1 or not large:
            return {}
        found = {}

        def trace(values: Batch) -> None:
            for path, x in self._one(values, 0, Rng.from_seed(0, step=0, progress=0.0), asked)[0].gradients.items():
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
    sweep = Sweep(
        loss, name, microbatches, rows, spec.outputs, spec, exchange,
        sparse=True, narrowing=narrowing, casts=spec.access.casts, clip_examples=clip_examples,
    )  # fmt: skip
    factor = Factor.of(loss_scale, spec, microbatches * replicas) if loss_scale else None
    asked = Asked(name, variables, factor=factor, curvature_due=curvature_due, sampled_loss=sampled_loss)
    added, made = sweep(values, rng, asked)
    known = factor and factor.read()
    found = Accumulated(added, not spec.weighted, known, sweep.layers, sampled=sampled_loss is not None)
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
    return dict(Sweep(fn, name, microbatches, rows, outputs, narrowing=narrowing)(values, rng, Asked())[1].outputs)


def _scaled(gradients: Mapping[str, Any], x: tf.Tensor) -> dict[str, Any]:
    return {path: scaled(gradient, tf.cast(x, gradient.dtype)) for path, gradient in gradients.items()}


def _apart(added: Additive, rows: Rows, paths: Collection[str]) -> tuple[Additive, Rows]:
    """Moves the gradients at `paths` from `added` to `rows.slices`, as pairs (values, indices)."""
    gradients = {path: x for path, x in added.gradients.items() if path not in paths}
    sparse = {path: added.gradients[path] for path in paths}
    slices = {path: (x.values, tf.cast(tf.reshape(x.indices, [-1]), tf.int64)) for path, x in sparse.items()}
    return added._replace(gradients=gradients), rows._replace(slices=slices)
