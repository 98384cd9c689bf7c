"""Explains a non-finite step: names the first non-finite value, or the example that caused it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.engine import TrainStep, accumulate_gradients, compute
from core.engine.layout import cut, shape_of
from core.errors import NotFiniteError, TapeloopError
from core.task import Batch, Compute
from core.task.loss import Sums, means
from trainers.errors.bad_examples import blamed_feature, unfit_example
from trainers.errors.tensorflow import REMEDY
from trainers.loop.input import Input


def explain_bad_step(train_step: TrainStep, input: Input, step: int) -> TapeloopError:
    """Returns an error that names the example that made a step non-finite, or else the first non-finite value.

    It repeats the whole step on one device. If the repetition fails, for example for lack of memory, the error names
    only the step. The same is true on a mesh, whose variables aren't on one device.
    """
    if not train_step.backend.one_device_reads:
        return NotFiniteError(f"step {step} is not finite. Nothing of it was saved. {REMEDY}")
    try:
        return _explain(train_step, input, step)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return NotFiniteError(
            f"step {step} is not finite. Nothing of it was saved. {REMEDY} (Repeating the step to find "
            f"the first bad value failed: {type(error).__name__}: {first[:200]})"
        )


def _explain(train_step: TrainStep, input: Input, step: int) -> TapeloopError:
    due = [plan for plan in train_step.plans if step % plan.phase.every == 0]
    read = {key for plan in due for key in plan.reads}
    batch = {key: x for key, x in input.batch_of(step).items() if key in read}
    struck = _mend_struck(train_step)
    feature = blamed_feature(batch, lambda values: _bad_phase(train_step, values, step) is not None)
    if feature is not None:
        what = f"step {step} is not finite, and nothing of it was saved"
        return unfit_example(what, input.source, feature, batch[feature], input.examples_of(step))
    found = struck or _bad_phase(train_step, batch, step)
    overflow = "a loss, or the norm of its gradients, overflowed (repeated without tracing, it is finite)"
    if train_step.backend.in_rounds:
        overflow = (
            "a loss or gradient of one replica, with the weights that it had trained alone in its round of local "
            "steps (with the weights from the start of the round, which remain, it is finite)"
        )
    return NotFiniteError(f"step {step} is not finite: {found or overflow}. Nothing of it was saved. {REMEDY}")


def _mend_struck(train_step: TrainStep) -> str | None:
    """Replaces non-finite weights with 0.01, so that the step can be repeated. Returns a text that names them, or None.

    An update whose loss was finite has written such weights, and their old values are lost. In the repetition, a
    gradient that is non-finite because of its data remains so. One that was non-finite because of the weights becomes
    finite.
    """
    said = None
    for name, optimizer in train_step.optimizers.items():
        struck = [path for path, v in optimizer.parameters.items() if not tf.reduce_all(tf.math.is_finite(v))]
        for path in struck:
            v = optimizer.parameters[path]
            v.assign(tf.where(tf.math.is_finite(v), v, tf.cast(0.01, v.dtype)))
        if struck and said is None:
            said = f"the loss of phase `{name}` was, but not the gradient of {listed(struck, most=4)}, or its update"
    return said


def _bad_phase(train_step: TrainStep, values: Batch, index: int) -> str | None:
    """Returns a text on the non-finite metrics and gradients of the first bad phase in step `index`, or None.

    It repeats the step without tracing, with the current weights. Since the step's beginning, only phases before the
    bad one have changed them.
    """
    values = dict(values)
    microbatches, _ = shape_of(values)
    for plan in train_step.plans:
        phase = plan.phase
        if index % phase.every:
            continue
        rng = train_step.rng_of(phase, index)
        mine = cut({key: values[key] for key in plan.reads}, plan.microbatches)
        if isinstance(phase, Compute):
            values |= cut(compute(phase.outputs, mine, rng, name=phase.name, narrowing=plan.narrowing), microbatches)
            continue
        # The gradients of an update that goes on through another phase show in what they were added to.
        variables = phase.variables() if plan.through is None else {}
        loss_scale = train_step.loss_scales.get(phase.name)
        accumulated, outputs = accumulate_gradients(
            phase.loss, variables, mine, rng, name=phase.name, precision=plan.narrowing, loss_scale=loss_scale
        )
        if accumulated.sums["weight"] < 0.0:
            return f"the weights of phase `{phase.name}` add up to {float(accumulated.sums['weight'])}; a weight counts"
        overflow_allowed = loss_scale is not None and bool(loss_scale.can_fall())
        found = list(_not_finite(accumulated.sums, {} if overflow_allowed else accumulated.gradients))
        if found:
            return f"in phase `{phase.name}`, {listed(found, most=4, quote='')}"
        values |= cut(outputs, microbatches)
    return None


def _not_finite(sums: Sums, gradients: Mapping[str, Any]) -> Iterator[str]:
    for name, x in means(sums).items():
        if not math.isfinite(x):
            yield f"`{name}` is {x}"
    for path, gradient in gradients.items():
        bad = int(tf.reduce_sum(tf.cast(~tf.math.is_finite(gradient), tf.int32)))
        if bad:
            yield f"the gradient of `{path}` ({bad:,} of {tf.size(gradient):,} values)"
