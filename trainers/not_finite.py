"""Finds out what was not finite: the bad step again, without tracing, from the weights that it left.

Those are the ones that it began with, but for what phases before the bad one wrote.
"""

import math
from collections.abc import Iterator

import tensorflow as tf

from core.arguments import listed
from core.engine import Accumulated, TrainStep, accumulate_gradients, compute
from core.engine.place import cut, shape_of
from core.engine.plan import outputs_of
from core.task import Batch, Compute
from core.task.loss import means


def describe_bad_step(train_step: TrainStep, values: Batch, index: int) -> str:
    """Names the figures and gradients of step `index` that aren't finite, phase by phase."""
    for name, optimizer in train_step.optimizers.items():
        struck = [path for path, v in optimizer.parameters.items() if not tf.reduce_all(tf.math.is_finite(v))]
        if struck:  # a finite loss let the update through, and so the gradients show in what they were added to
            return f"the loss of phase `{name}` was, but not the gradient of {listed(struck, most=4)}"
    values = dict(values)
    microbatches, _ = shape_of(values)
    for plan in train_step.plans:
        phase = plan.phase
        if index % phase.every:
            continue
        rng = train_step.rng_of(phase, index)
        mine = cut({key: values[key] for key in plan.reads}, plan.microbatches)
        if isinstance(phase, Compute):
            values |= cut(compute(outputs_of(phase), mine, rng, name=phase.name), microbatches)
            continue
        # The gradients of an update that goes on through another phase show in what they were added to.
        variables = phase.variables() if plan.through is None else {}
        accumulated, outputs = accumulate_gradients(phase.loss, variables, mine, rng, name=phase.name)
        if accumulated.sums["weight"] < 0.0:
            return f"the weights of phase `{phase.name}` add up to {float(accumulated.sums['weight'])}; a weight counts"
        found = list(_not_finite(accumulated))
        if found:
            return f"in phase `{phase.name}`, {listed(found, most=4, quote='')}"
        values |= cut(outputs, microbatches)
    return "a loss, or the norm of its gradients, overflowed (done again without tracing it is finite)"


def _not_finite(accumulated: Accumulated) -> Iterator[str]:
    for name, x in means(accumulated.sums).items():
        if not math.isfinite(x):
            yield f"`{name}` is {x}"
    for path, gradient in accumulated.gradients.items():
        bad = int(tf.reduce_sum(tf.cast(~tf.math.is_finite(gradient), tf.int32)))
        if bad:
            yield f"the gradient of `{path}` ({bad:,} of {tf.size(gradient):,} values)"
