"""The end of an update, in replica context: reduces the gradients, applies them, and updates averages."""

import dataclasses
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.distribution.ledger import GRADIENTS
from core.engine.accumulate import Accumulated
from core.engine.loss_scale import LossScale
from core.engine.noise_scale import NoiseScale
from core.module import named_variables
from core.optimizers import Optimizer
from core.optimizers.norms import global_norm
from core.task import Update
from core.task.loss import GRADIENT_NORM, NOISE_SCALE, OVERFLOWED, Overflowed, Sums
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
    loss_scale: LossScale | None = None,
    parts: int = 1,
) -> tuple[tf.Tensor, Sums]:
    """Applies the `reduced` gradients if the step is good: a finite loss, and a gradient norm below `limit` if given.

    With a `loss_scale`, gradients that overflow aren't applied. They lower the scale, and the step still counts as
    good. `parts` is the number of microbatches on all replicas, for the gradient noise scale.

    Returns a boolean tensor, false if the step is bad, and the summed metrics with the gradient norm.
    """
    gradients = {path: tf.convert_to_tensor(gradient) for path, gradient in reduced.mean_gradients().items()}
    norm, weight = global_norm(gradients), reduced.sums["weight"]
    # The update waits only for the loss, which is known before the gradients: also checking those first would cost
    # small models a tenth of their speed. A non-finite gradient ends the run all the same.
    written = healthy & tf.math.is_finite(reduced.sums["loss"])
    overflowed = written & loss_scale.overflows(norm) if loss_scale else None
    healthy = written & tf.math.is_finite(norm)
    if limit is not None:
        healthy &= norm < tf.cast(limit, norm.dtype)
    if limit is not None or loss_scale:  # with float16, gradients are expected to overflow now and then
        written = healthy
    if overflowed is not None:
        healthy |= overflowed
    if weighted:
        # Without weight the run continues without an update. A negative weight is a mistake.
        healthy &= weight >= 0.0
        written &= weight > 0.0
    value = tf.math.divide_no_nan(reduced.sums["loss"], weight)
    averages = optimizer.averaged_statistics
    moments = reduced.layers.moments(reduced.additive.statistics) if averages else {}  # before the averages move
    if reduced.additive.curvature:
        optimizer.take_curvature(reduced.mean_curvature(), apply_if=written)
    optimizer.apply(gradients, value=value, apply_if=written)
    commit_untrained(phase, reduced, written)
    if averages:
        optimizer.average_statistics(moments, apply_if=written)
    norms: dict[str, Any] = {GRADIENT_NORM: weight * tf.cast(norm, weight.dtype)}
    if NOISE_SCALE in reduced.sums:
        found = NoiseScale.of(reduced.sums[NOISE_SCALE], norm, weight, parts=parts)
        norms[NOISE_SCALE] = NoiseScale(*(tf.where(written, x, 0.0) for x in found))
    if loss_scale and overflowed is not None:
        loss_scale.advance(applied=written, overflowed=overflowed)
        norms |= {
            GRADIENT_NORM: tf.where(overflowed, 0.0, norms[GRADIENT_NORM]),
            OVERFLOWED: Overflowed(tf.cast(overflowed, tf.float32), tf.where(overflowed, weight, 0.0)),
        }
    return healthy, {**reduced.sums, **norms}


def commit_untrained(phase: Update, reduced: Accumulated, apply_if: tf.Tensor) -> None:
    """Updates moving averages and derived state of the modules that `phase` trains, if `apply_if` is true."""
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
