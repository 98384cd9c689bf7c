"""A training step the plain way: one device, one microbatch, one phase after the other.

A second opinion on the engine, of which it uses nothing.
"""

from collections.abc import Mapping

import tensorflow as tf

from core.optimizers import Optimizer
from core.random import Rng
from core.task import Batch, Compute, Task, Update
from core.task.loss import checked, weighted_sums
from core.task.statistics import commit


def optimizers_of(task: Task) -> dict[str, Optimizer]:
    """One for each update, by the name of its phase."""
    return {p.name: Optimizer(p.optimizer, p.variables()) for p in task.phases() if isinstance(p, Update)}


def plain_step(
    task: Task, optimizers: Mapping[str, Optimizer], batch: Batch, rng: Rng, *, only: str | None = None
) -> dict[str, tf.Tensor]:
    """One step on one device and one microbatch; applies the update `only`, or all. Returns the mean losses."""
    values = dict(batch)
    rows = len(next(iter(values.values())))
    rngs = {phase.name: rng.fold(phase.name)._replace(num_rows=rows) for phase in task.phases()}
    computes, losses = dict[str, Compute](), {}
    for phase in task.phases():
        here = rngs[phase.name]
        if isinstance(phase, Compute):
            computes[phase.name] = phase
            outputs, history = phase.fn(values, here) if phase.state else (phase.fn(values, here), {})
            values |= outputs
            if only is None:
                commit(history)
            continue
        optimizer = optimizers[phase.name]
        with tf.GradientTape() as tape:
            if phase.through is not None:  # once more, where the tape sees it
                values |= computes[phase.through].fn(values, rngs[phase.through])
            result = checked(phase.loss(values, here), phase.name, rows)
            objective, sums = weighted_sums(result)
            mean = objective / sums["weight"]
        gradients = tape.gradient(mean, optimizer.parameters, unconnected_gradients=tf.UnconnectedGradients.NONE)
        missing = [path for path, gradient in gradients.items() if gradient is None]
        assert not missing, f"phase `{phase.name}` trains {missing}, but its loss doesn't depend on them."
        if only in (None, phase.name):
            optimizer.apply(gradients, value=mean)
        values |= result.outputs
        losses[phase.name] = mean
    return losses
