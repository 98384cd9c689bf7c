"""The end of an update, in replica context: reduces gradients over replicas, applies them, updates averages."""

import dataclasses
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.distribution.ledger import GRADIENTS
from core.engine.accumulate import Accumulated
from core.module import named_variables
from core.optimizers import Optimizer
from core.optimizers.norms import global_norm
from core.task import Update
from core.task.loss import GRADIENT_NORM, Sums
from core.task.statistics import commit, refreshed


def reduce_over_replicas(accumulated: Accumulated, exchange: Exchange, name: str = "loss") -> Accumulated:
    """Sums gradients and metrics over the replicas, in one collective."""
    additive = accumulated.additive
    narrow = exchange.reduce_in
    if narrow is not None:
        additive = additive._replace(gradients={path: _cast(x, narrow) for path, x in additive.gradients.items()})
    additive = exchange.sum(additive, phase=name, what=GRADIENTS)
    if narrow is not None:
        wide = {path: _cast(x, accumulated.gradients[path].dtype) for path, x in additive.gradients.items()}
        additive = additive._replace(gradients=wide)
    return dataclasses.replace(accumulated, additive=additive)


def write_update(
    phase: Update,
    optimizer: Optimizer,
    reduced: Accumulated,
    healthy: tf.Tensor,
    *,
    weighted: bool,
    limit: tf.Tensor | None = None,
) -> tuple[tf.Tensor, Sums]:
    """Applies the `reduced` gradients if the loss is finite and, with a `limit`, the gradient norm is below `limit`.

    Returns a boolean tensor, false if the step is bad, and the summed metrics with the gradient norm.
    """
    gradients = {path: tf.convert_to_tensor(gradient) for path, gradient in reduced.mean_gradients().items()}
    norm, weight = global_norm(gradients), reduced.sums["weight"]
    # The update waits only for the loss, which is known before the gradients: also checking those first would cost
    # small models a tenth of their speed. A non-finite gradient ends the run all the same.
    written = healthy & tf.math.is_finite(reduced.sums["loss"])
    healthy = written & tf.math.is_finite(norm)
    if limit is not None:
        written = healthy = healthy & (norm < tf.cast(limit, norm.dtype))
    if weighted:
        # Without weight the run continues without an update. A negative weight is a mistake.
        healthy &= weight >= 0.0
        written &= weight > 0.0
    value = tf.math.divide_no_nan(reduced.sums["loss"], weight)
    averages = optimizer.averaged_statistics
    moments = reduced.layers.moments(reduced.additive.statistics) if averages else {}  # before the averages move
    optimizer.apply(gradients, value=value, apply_if=written)
    commit_untrained(phase, reduced, written)
    if averages:
        optimizer.average_statistics(moments, apply_if=written)
    return healthy, {**reduced.sums, GRADIENT_NORM: weight * tf.cast(norm, weight.dtype)}


def commit_untrained(phase: Update, reduced: Accumulated, apply_if: tf.Tensor) -> None:
    """Updates moving averages and derived state if `apply_if`, only in the modules that `phase` trains."""
    modules = [phase.trains] if isinstance(phase.trains, tf.Module) else list(phase.trains)
    values = reduced.layers.averages(reduced.additive.statistics)
    for module in modules:
        values |= refreshed(module)  # from the updated parameters
    own = {variable.ref() for module in modules for variable in named_variables(module).values()}
    commit({reference: value for reference, value in values.items() if reference in own}, apply_if=apply_if)


def _cast(gradient: Any, dtype: tf.DType) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(gradient.values, dtype), gradient.indices, gradient.dense_shape)
    return tf.cast(gradient, dtype)
