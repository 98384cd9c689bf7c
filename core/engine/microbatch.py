"""One microbatch of a phase: calls its function, and computes the requested gradients.

A loss without weights is divided by the number of examples before differentiation. With weights, the gradients are
divided by the total weight after their reduction over replicas. So results are exact however a batch is split.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.distribution.shared_rows import mixing
from core.engine.curvature import Curvature, gradients_if
from core.engine.inspect_phase import LossSpec
from core.engine.loss_scale import Factor
from core.engine.noise_scale import square_of_part
from core.optimizers.clipping import clipped_together
from core.precision import AS_GIVEN, Narrowing, widened
from core.random import Rng
from core.task import Batch, Loss
from core.task.guards import refuse_missing_gradients
from core.task.loss import NOISE_SCALE, Sums, checked, weighted_sums
from core.task.statistics import Statistics


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


@dataclasses.dataclass
class Microbatch:
    """Calls a phase's function on one of `number` microbatches, on one replica or device."""

    fn: Callable[[Batch, Rng], Any]
    name: str
    number: int
    rows: int  # of one microbatch, here
    loss: LossSpec | None = None  # None for a `Compute`
    exchange: Exchange | None = None  # between the replicas that split the rows
    sparse: bool = False  # whether gradients that touch few rows stay slices
    narrowing: Narrowing = AS_GIVEN  # the casts of a microbatch
    clip_examples: float | None = None  # the largest norm of an example's gradient; a microbatch is then one example
    splits: int = 1  # of so many microbatches consists one of the trainer's, if that is more than one
    layers: Statistics = dataclasses.field(default_factory=Statistics)  # of the last call: knows the layer of each sum

    @property
    def replicas(self) -> int:
        return self.exchange.replicas if self.exchange else 1

    def __call__(self, values: Batch, m: Any, rng: Rng, asked: Asked) -> tuple[Additive, Rows]:
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
        curve = Curvature(asked.variables, rng, asked.curvature_due) if asked.curvature_due and not drawn else None
        with self.narrowing.computing(), shared, curve.recorded() if curve else contextlib.nullcontext():
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*asked.variables.values(), *inputs.values()])
                made = self.fn(self.narrowing.narrowed(values), rng._replace(dtype=self.narrowing.dtype))
                if self.loss is not None:
                    target, added, outputs = self._sums(made)
                    target = target if asked.factor is None else target * asked.factor.read()
                else:
                    target, added, outputs = None, Additive({}, {}, {}), dict(made)
            along: Sequence[tf.Tensor] | None = None
            gradients: Mapping[str, Any] = {}
            if asked.cotangents is not None:
                target = [made[key] for key in asked.cotangents]
                along, outputs = [tf.gather(x, m) for x in asked.cotangents.values()], {}
            if asked.variables:
                gradients = tape.gradient(target, dict(asked.variables), output_gradients=along)
                refuse_missing_gradients(gradients, asked.by)
            if curve:
                curve.take(gradients)
            if inputs:
                inputs = tape.gradient(target, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        if curve:
            with self.narrowing.computing():
                added = added._replace(curvature=curve.estimate())
        added = added._replace(curvature=sampled) if sampled else added
        if self.loss and asked.variables and (self.loss.noise_scale or self.clip_examples is not None):
            gradients, sums = self._of_part(gradients, added.sums, asked.factor)
            added = added._replace(sums=sums)
        sent = {path: self._sent(gradient, asked.variables[path]) for path, gradient in gradients.items()}
        return added._replace(gradients=sent), Rows(outputs, inputs)

    def _of_part(self, gradients: Mapping[str, Any], sums: Sums, factor: Factor | None) -> tuple[Any, Sums]:
        """Clips the gradients of an example, and adds the square of a part's gradients to `sums`, as far as asked."""
        assert self.loss
        share = sums["weight"] if self.loss.weighted else 1.0 / (self.number * self.replicas)
        divisor = share if factor is None else share * factor.read()
        if self.clip_examples is not None:
            dense = {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}
            gradients = clipped_together(dense, self.clip_examples * divisor)
        if self.loss.noise_scale:
            sums = {**sums, NOISE_SCALE: square_of_part(gradients, divisor)}
        return gradients, sums

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
            objective /= float(result.per_example.shape.num_elements() * self.number * self.replicas)
        # The sums come from the replica's own statistics. The threads of replicas alternate at collectives, so an
        # object that they share would contain another replica's sums, without an error.
        layers = result.statistics or Statistics()
        self.layers = layers
        return objective, Additive({}, sums, widened(dict(layers.sums))), dict(result.outputs)

    def _sent(self, gradient: Any, variable: tf.Variable) -> Any:
        """Makes a sparse gradient dense if all replicas together touch at least as many rows as `variable` has."""
        if isinstance(gradient, tf.IndexedSlices) and self.sparse and self.replicas > 1:
            touched = gradient.indices.shape.num_elements()
            if touched and touched * self.number * self.replicas < variable.shape[0]:
                return gradient
        return tf.convert_to_tensor(gradient)
