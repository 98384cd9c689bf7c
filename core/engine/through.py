"""Updates that go on through a `Compute`: a network trained by a loss that runs somewhere else.

The loss gives the gradients of what the `Compute` made; they move to where it ran, and go back through it there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from core.distribution.exchange import replica_here
from core.distribution.ledger import FIGURES
from core.engine.accumulate import Accumulated, Additive, Microbatches, at_microbatch, refuse_missing
from core.engine.place import Placed, cut, moved, shape_of
from core.engine.plan import Plan
from core.engine.write import reduce_over_replicas, write_update
from core.random import Rng
from core.task import Batch, Compute, Update
from core.task.statistics import Statistics

if TYPE_CHECKING:
    from core.engine.run import PhaseRunner


class Recorded(NamedTuple):
    """A forward pass, kept so that it needn't be made twice: a tape may be asked later, by another `strategy.run`."""

    tape: tf.GradientTape
    outputs: Batch

    def gradients(self, parameters: Mapping[str, tf.Variable], wanted: Batch, name: str) -> Mapping[str, tf.Tensor]:
        """Of the parameters, given those of the outputs."""
        outputs = [self.outputs[key] for key in wanted]
        gradients = self.tape.gradient(outputs, dict(parameters), output_gradients=list(wanted.values()))
        refuse_missing(gradients, name)
        return {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}


def update_through(
    runner: "PhaseRunner",
    plan: Plan,
    phase: Update,
    values: Batch,
    placed: Mapping[str, Placed],
    index: tf.Tensor,
    healthy: tf.Tensor,
) -> Any:
    """One such update: whether all is well, its figures, and the loss's outputs."""
    source, exchange, optimizer = plan.through, runner.exchange, runner.optimizers[plan.name]
    layers = Statistics()
    assert source
    assert plan.loss
    assert isinstance(source.phase, Compute)
    # Only weights have to be known before the gradients are sent on: else the figures travel with these.
    together = plan.everywhere and source.everywhere and not plan.loss.weighted
    fn, recorded = source.phase.fn, runner.recorded.get(source.name)

    def at_the_loss(values: Batch, index: tf.Tensor) -> Any:
        nonlocal layers
        keys = [key for key, spec in source.outputs.items() if key in plan.reads and spec.dtype.is_floating]
        parts = runner.parts(plan, phase)
        additive, wanted, outputs = _gradients_of_inputs(
            parts, cut(values, plan.microbatches), keys, runner.rng_here(plan, index)
        )
        layers = parts.layers
        if plan.everywhere and not together:
            additive = exchange.sum(additive, phase=plan.name, what=FIGURES)
        if parts.spec.weighted:
            scale = tf.math.divide_no_nan(1.0, additive.sums["weight"])
            wanted = {key: x * tf.cast(scale, x.dtype) for key, x in wanted.items()}
        return additive, cut(wanted, runner.microbatches), cut(outputs, runner.microbatches)

    def at_the_source(wanted: Batch, values: Batch, index: tf.Tensor) -> Any:
        if recorded:
            return recorded[replica_here()].gradients(optimizer.parameters, wanted, plan.name)
        return _gradients_of_parameters(
            fn,
            optimizer.parameters,
            cut(values, source.microbatches),
            cut(wanted, source.microbatches),
            runner.rng_here(source, index),
            replicas=runner.replicas_of(source),
            name=plan.name,
        )

    def write(gradients: Mapping[str, Any], additive: Additive, healthy: tf.Tensor) -> Any:
        # The gradients are divided already: what is left to do is as for a loss without weights.
        if source.everywhere:
            own = additive._replace(gradients=gradients) if together else Additive(gradients, {}, {})
            reduced = reduce_over_replicas(Accumulated(own, False), exchange, plan.name).additive
            additive, gradients = (reduced if together else additive), reduced.gradients
        whole = Accumulated(additive._replace(gradients=gradients), False, layers)
        return write_update(phase, optimizer, whole, healthy, fused=not runner.compile or exchange.replicas > 1)

    additive, wanted, outputs = runner.at(plan, at_the_loss, values, index)
    if not source.everywhere:
        additive = exchange.first(additive)  # summed already, so all replicas have the same
    wanted = {
        key: moved(Placed(x, plan.everywhere), everywhere=source.everywhere, exchange=exchange, phase=plan.name)
        for key, x in wanted.items()
    }
    # What is recorded needn't be sent its inputs again.
    inputs = {} if recorded else runner.inputs_of(source, placed)
    gradients = runner.at(source, at_the_source, wanted, inputs, index)
    if source.everywhere:
        healthy, figures = exchange.run(write, gradients, additive, healthy)
    else:
        healthy, figures = runner.where_it_lives(plan, write, gradients, additive, healthy)
    return (*exchange.first((healthy, figures)), outputs)


def _gradients_of_inputs(
    parts: Microbatches, values: Batch, keys: Sequence[str], rng: Rng
) -> tuple[Additive, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Sums over the microbatches; the gradients of the inputs `keys` and the outputs, of each."""
    if parts.microbatches == 1:
        additive, wanted, outputs = parts.differentiate_inputs(values, 0, rng, keys)
        return additive, {k: x[tf.newaxis] for k, x in wanted.items()}, {k: x[tf.newaxis] for k, x in outputs.items()}
    specs = {
        "wanted": {key: tf.TensorSpec(values[key].shape[1:], values[key].dtype) for key in keys},
        "outputs": dict(parts.spec.outputs),
    }
    stores = tf.nest.map_structure(
        lambda spec: tf.TensorArray(spec.dtype, parts.microbatches, element_shape=spec.shape), specs
    )

    def body(m: tf.Tensor, so_far: Additive, stores: Any) -> Any:
        more, wanted, outputs = parts.differentiate_inputs(values, m, rng, keys)
        made = {"wanted": wanted, "outputs": outputs}
        stores = {kind: {key: x.write(m, made[kind][key]) for key, x in stores[kind].items()} for kind in stores}
        return m + 1, tf.nest.map_structure(tf.add, so_far, more), stores

    start = (tf.constant(0), parts.nothing()._replace(gradients={}), stores)
    _, additive, stores = tf.while_loop(lambda m, *_: m < parts.microbatches, body, start)
    stacked = {kind: {key: x.stack() for key, x in group.items()} for kind, group in stores.items()}
    return additive, stacked["wanted"], stacked["outputs"]


def _gradients_of_parameters(
    fn: Callable[[Batch, Rng], Mapping[str, tf.Tensor]],
    parameters: Mapping[str, tf.Variable],
    values: Batch,
    wanted: Batch,
    rng: Rng,
    *,
    replicas: int,
    name: str,
) -> dict[str, tf.Tensor]:
    """Through `fn`, which is computed again: no tape reaches into the condition of a phase that isn't always due."""
    microbatches, rows = shape_of(wanted)

    def one(m: Any) -> dict[str, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(parameters.values()))
            made = fn({key: x[m] for key, x in values.items()}, at_microbatch(rng, m, rows, replicas))
        outputs, directions = [made[key] for key in wanted], [x[m] for x in wanted.values()]
        gradients = tape.gradient(outputs, dict(parameters), output_gradients=directions)
        refuse_missing(gradients, name)
        return {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}

    if microbatches == 1:
        return one(0)
    nothing = {path: tf.zeros(v.shape, v.dtype) for path, v in parameters.items()}

    def body(m: tf.Tensor, so_far: Any) -> Any:
        return m + 1, tf.nest.map_structure(tf.add, so_far, one(m))

    return dict(tf.while_loop(lambda m, _: m < microbatches, body, (tf.constant(0), nothing))[1])
