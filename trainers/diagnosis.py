"""What went wrong, in terms of what the user gave: values that don't fit, and steps that aren't finite."""

import contextlib
import math
import re
from collections.abc import Iterator

import tensorflow as tf

from core.arguments import listed
from core.data import Source, unreadable_image
from core.engine import Accumulated, TrainStep, accumulate_gradients, compute
from core.engine.place import cut, shape_of
from core.errors import ConfigurationError, DataError
from core.task import Batch, Compute
from core.task.loss import means

WRONG_ROWS = "`evaluate` must return one value per row of its batch in `per_example`"
REMEDY = (
    "Lower the learning rate, clip gradients (`clip_by_global_norm`), or look for a division, logarithm or square root "
    "of zero in the step function."
)
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explained(source: Source) -> Iterator[None]:
    """Raises what TensorFlow's kernels say of examples of `source` as an error in the user's terms."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if WRONG_ROWS in error.message:
            raise ConfigurationError(
                f"{WRONG_ROWS}: not a mean over the batch, nor anything else of another length."
            ) from None
        damaged = unreadable_image(error.message)
        if damaged is not None:
            raise damaged from error
        found = _LABEL.search(error.message)
        if found is None:
            raise
        label, classes = found.groups()
        raise DataError(
            f"a label of source `{source.name}` is {label}, but the network has {classes} outputs, for classes 0 to "
            f"{int(classes) - 1}: renumber the labels, or give the network more outputs."
        ) from error


@contextlib.contextmanager
def repeatable_or_refused(deterministic: bool) -> Iterator[None]:
    """Raises what TensorFlow says of an operation that it can't repeat to the bit as an error in the user's terms."""
    try:
        yield
    except tf.errors.UnimplementedError as error:
        first = error.message.strip().split("\n")[0].rstrip(".")
        if not deterministic or "determinis" not in first:
            raise
        raise ConfigurationError(
            "`Experiment.deterministic` is True, but TensorFlow has no repeatable form of an operation of this step: "
            f"{first}. Set `Trainer.compile = False` if it is XLA that lacks it, or else `Experiment.deterministic = "
            "False`."
        ) from error


def describe_bad_step(train_step: TrainStep, values: Batch, index: int) -> str:
    """Names the figures and gradients of step `index` that aren't finite, phase by phase.

    Does the bad step again, without tracing, from the weights that it left: those that it began with, but for what
    phases before the bad one wrote.
    """
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
            values |= cut(compute(phase.outputs, mine, rng, name=phase.name), microbatches)
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
