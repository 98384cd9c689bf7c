"""From a step function and its microbatches to sums: of gradients, figures and statistics. Nothing is divided here.

A value on its way through the phases is `[microbatches, rows, ...]`; step functions see `[rows, ...]`. What they return
is only ever *summed* (over rows, microbatches and replicas) and divided once, by the total weight, so losses, gradients
and metrics are exact for ragged weights and don't depend on how a batch was cut up.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.engine.describe import LossSpec, describe_loss, describe_outputs, microbatch_specs
from core.engine.describe import zeros as zeros_of
from core.engine.place import shape_of
from core.random import Rng
from core.task import Batch, Loss
from core.task.loss import Sums, checked, weighted_sums
from core.task.statistics import Statistics, SumOverReplicas, summing_over_replicas

SPARSE_FROM = 1024  # rows of a variable; tracing a gradient to see whether it is sparse isn't worth it for smaller ones


class Additive(NamedTuple):
    """What is summed over microbatches and replicas."""

    gradients: Mapping[str, Any]  # tensors, or `IndexedSlices` where that is less to send
    sums: Sums
    statistics: Any  # sums by layer, as `Statistics` keeps them


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """What an update knows of its batch."""

    additive: Additive
    weighted: bool  # if not, the total weight is just a count, known beforehand, and the gradients are divided already
    layers: Statistics = dataclasses.field(default_factory=Statistics)  # knows which layer is which

    @property
    def gradients(self) -> Mapping[str, Any]:
        """The sums of the gradients."""
        return self.additive.gradients

    @property
    def sums(self) -> Sums:
        """The sums of weight, loss and metrics."""
        return self.additive.sums

    def mean_gradients(self) -> Mapping[str, Any]:
        """The gradients of the weighted mean loss; zero where the total weight is."""
        if not self.weighted:
            return self.gradients
        scale = tf.math.divide_no_nan(1.0, self.sums["weight"])
        return {path: _scaled(gradient, tf.cast(scale, gradient.dtype)) for path, gradient in self.gradients.items()}


class Microbatches:
    """The microbatches of one phase on one replica, differentiated one by one.

    `rng` stands at the first row of the first one; one global microbatch further on, its rows are `replicas` times its
    own on.
    """

    def __init__(
        self,
        loss: Callable[[Batch, Rng], Loss],
        variables: Mapping[str, tf.Variable],
        *,
        name: str,
        spec: LossSpec,
        microbatches: int,
        rows: int,
        replicas: int = 1,
        sum_over_replicas: SumOverReplicas | None = None,
        sparse: bool = True,
    ):
        self.loss, self.variables, self.name, self.spec = loss, dict(variables), name, spec
        self.microbatches, self.rows, self.replicas = microbatches, rows, replicas
        self.sum_over_replicas, self.sparse = sum_over_replicas, sparse and replicas > 1
        self.layers = Statistics()

    def differentiate(self, values: Batch, m: Any, rng: Rng) -> tuple[Additive, dict[str, tf.Tensor]]:
        """The sums of microbatch `m`, and the loss's `outputs`."""
        here = at_microbatch(rng, m, self.rows, self.replicas)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(self.variables.values()))
            with _summing(self.sum_over_replicas):
                result = checked(self.loss({key: x[m] for key, x in values.items()}, here), self.name, self.rows)
            objective, sums = self._objective(result)
        with _summing(self.sum_over_replicas):
            gradients = tape.gradient(objective, self.variables)
        refuse_missing(gradients, self.name)
        self.layers = result.statistics or self.layers
        gradients = {path: self._sent(path, gradient) for path, gradient in gradients.items()}
        return Additive(gradients, sums, dict(self.layers.sums)), dict(result.outputs)

    def differentiate_inputs(
        self, values: Batch, m: Any, rng: Rng, keys: Sequence[str]
    ) -> tuple[Additive, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The sums of microbatch `m`, the gradients of its inputs `keys` in place of the variables', the `outputs`."""
        inputs = {key: x[m] for key, x in values.items()}
        wanted = {key: inputs[key] for key in keys}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            here = at_microbatch(rng, m, self.rows, self.replicas)
            with _summing(self.sum_over_replicas):
                result = checked(self.loss(inputs, here), self.name, self.rows)
            objective, sums = self._objective(result)
        with _summing(self.sum_over_replicas):
            gradients = tape.gradient(objective, wanted, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self.layers = result.statistics or self.layers
        return Additive({}, sums, dict(self.layers.sums)), dict(gradients), dict(result.outputs)

    def _objective(self, result: Loss) -> tuple[tf.Tensor, dict[str, Any]]:
        objective, sums = weighted_sums(result)
        if not self.spec.weighted:
            # A factor on one number instead of on every gradient.
            objective /= float(result.per_example.shape.num_elements() * self.microbatches * self.replicas)
        return objective, sums

    def nothing(self, sparse: Collection[str] = ()) -> Additive:
        """Where the sums start; gradients in `sparse` aren't carried along."""
        dense = {path: tf.zeros(v.shape, v.dtype) for path, v in self.variables.items() if path not in sparse}
        return Additive(dense, self.spec.zero_sums(), zeros_of(self.spec.statistics))

    def sparse_rows(self, values: Batch) -> dict[str, int]:
        """The slices of each gradient that is sent as such, found by tracing one microbatch."""
        if not self.sparse or not any(v.shape.rank and v.shape[0] >= SPARSE_FROM for v in self.variables.values()):
            return {}
        found: dict[str, int] = {}

        def trace(values: Batch) -> None:
            gradients = self.differentiate(values, 0, Rng.from_seed(0))[0].gradients
            slices = {path: x for path, x in gradients.items() if isinstance(x, tf.IndexedSlices)}
            found.update({path: x.indices.shape.num_elements() for path, x in slices.items()})

        specs = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in values.items()}
        tf.function(trace, autograph=False).get_concrete_function(specs)
        return found

    def _sent(self, path: str, gradient: Any) -> Any:
        """Slices only where the rows touched on all replicas are fewer than there are."""
        if isinstance(gradient, tf.IndexedSlices) and self.sparse:
            touched = gradient.indices.shape.num_elements()
            if touched and touched * self.microbatches * self.replicas < self.variables[path].shape[0]:
                return gradient
        return tf.convert_to_tensor(gradient)


def accumulate_gradients(
    loss: Callable[[Batch, Rng], Loss],
    variables: Mapping[str, tf.Variable],
    values: Batch,
    rng: Rng,
    *,
    replicas: int = 1,
    name: str = "loss",
    spec: LossSpec | None = None,
    sum_over_replicas: SumOverReplicas | None = None,
) -> tuple[Accumulated, dict[str, tf.Tensor]]:
    """Sums of gradients and figures over the microbatches, and the loss's `outputs` as [microbatches, rows, ...].

    `rng` stands at the first row of the first microbatch. With several replicas, `sum_over_replicas` is what layers sum
    their statistics by; there may be only one microbatch then, because a collective can't stand in a replica's loop.
    """
    microbatches, rows = shape_of(values)
    spec = spec or describe_loss(loss, microbatch_specs(values), name)
    parts = Microbatches(
        loss,
        variables,
        name=name,
        spec=spec,
        microbatches=microbatches,
        rows=rows,
        replicas=replicas,
        sum_over_replicas=sum_over_replicas,
    )
    if microbatches == 1:
        additive, outputs = parts.differentiate(values, 0, rng)
        return Accumulated(additive, spec.weighted, parts.layers), {key: x[tf.newaxis] for key, x in outputs.items()}

    sparse = parts.sparse_rows(values)
    stores = {key: tf.TensorArray(o.dtype, microbatches, element_shape=o.shape) for key, o in spec.outputs.items()}
    slices = {path: _SliceStore.empty(variables[path], rows, microbatches) for path, rows in sparse.items()}

    def body(m: tf.Tensor, so_far: Additive, stores: Any, slices: Any) -> Any:
        more, outputs = parts.differentiate(values, m, rng)
        slices = {path: store.write(m, more.gradients[path]) for path, store in slices.items()}
        more = more._replace(gradients={path: x for path, x in more.gradients.items() if path not in sparse})
        stores = {key: store.write(m, outputs[key]) for key, store in stores.items()}
        return m + 1, tf.nest.map_structure(tf.add, so_far, more), stores, slices

    start = (tf.constant(0), parts.nothing(sparse), stores, slices)
    _, additive, stores, slices = tf.while_loop(lambda m, *_: m < microbatches, body, start)
    # In the variables' order, in which every replica and the ledger find them.
    gradients = {
        path: slices[path].concatenated(v.shape) if path in slices else additive.gradients[path]
        for path, v in variables.items()
    }
    outputs = {key: store.stack() for key, store in stores.items()}
    return Accumulated(additive._replace(gradients=gradients), spec.weighted, parts.layers), outputs


def compute(
    fn: Callable[[Batch, Rng], Mapping[str, tf.Tensor]],
    values: Batch,
    rng: Rng,
    *,
    replicas: int = 1,
    name: str = "compute",
    specs: Mapping[str, tf.TensorSpec] | None = None,
    sum_over_replicas: SumOverReplicas | None = None,
) -> dict[str, tf.Tensor]:
    """`fn` over each microbatch; its outputs are [microbatches, rows, ...]. Arguments as in `accumulate_gradients`."""
    microbatches, rows = shape_of(values)

    def one(m: Any) -> dict[str, tf.Tensor]:
        with _summing(sum_over_replicas):
            return dict(fn({key: x[m] for key, x in values.items()}, at_microbatch(rng, m, rows, replicas)))

    if microbatches == 1:
        return {key: x[tf.newaxis] for key, x in one(0).items()}
    specs = specs or describe_outputs(fn, microbatch_specs(values), name)[0]
    return tf.map_fn(one, tf.range(microbatches), fn_output_signature=dict(specs))


def at_microbatch(rng: Rng, m: Any, rows: int, replicas: int) -> Rng:
    """`rng` at the first row of microbatch `m`."""
    return rng._replace(first_row=rng.first_row + m * (rows * replicas), num_rows=rows)


class _SliceStore(NamedTuple):
    """The slices of all microbatches: arrays of fixed size, because slices that grow break a loop."""

    values: tf.TensorArray
    indices: tf.TensorArray

    @classmethod
    def empty(cls, variable: tf.Variable, rows: int, microbatches: int) -> "_SliceStore":
        """Room for `rows` slices of each microbatch."""
        shape = [rows, *variable.shape[1:]]
        return cls(
            tf.TensorArray(variable.dtype, microbatches, element_shape=shape),
            tf.TensorArray(tf.int64, microbatches, element_shape=[rows]),
        )

    def write(self, m: tf.Tensor, slices: tf.IndexedSlices) -> "_SliceStore":
        """With those of microbatch `m`."""
        indices = tf.cast(tf.reshape(slices.indices, [-1]), tf.int64)
        return _SliceStore(self.values.write(m, slices.values), self.indices.write(m, indices))

    def concatenated(self, shape: tf.TensorShape) -> tf.IndexedSlices:
        """All of them."""
        values, indices = self.values.stack(), tf.reshape(self.indices.stack(), [-1])
        values = tf.reshape(values, [indices.shape[0], *shape[1:]])
        return tf.IndexedSlices(values, indices, tf.constant(shape.as_list(), tf.int64))


def _scaled(gradient: Any, scale: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return gradient * scale


@contextlib.contextmanager
def _summing(function: SumOverReplicas | None) -> Iterator[None]:
    """Set here, inside the replica: a strategy runs each in a thread of its own, which inherits no context."""
    with summing_over_replicas(function) if function else contextlib.nullcontext():
        yield


def refuse_missing(gradients: Mapping[str, Any], name: str) -> None:
    missing = [path for path, gradient in gradients.items() if gradient is None]
    if missing:
        raise ValueError(
            f"phase `{name}` trains {', '.join(f'`{path}`' for path in missing)}, but its loss doesn't depend on "
            f"{'it' if len(missing) == 1 else 'them'} (the gradient is None). Use "
            f"{'it' if len(missing) == 1 else 'them'} in the loss, or leave {'it' if len(missing) == 1 else 'them'} "
            "out of `trains`. `tf.stop_gradient`, an integer cast or `argmax` on the way also cuts a gradient off."
        )
