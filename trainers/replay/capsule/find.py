"""Repeats one step phase by phase, eagerly on one device, and finds the first value that isn't finite."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.engine import TrainStep, accumulate_gradients, compute
from core.engine.apply_update import write_update
from core.engine.inspect_phase import untraced
from core.engine.layout import Placed, cut, shape_of
from core.engine.plan import Plan
from core.precision import AS_GIVEN, Narrowing
from core.random import Rng
from core.task import Batch, Compute, Update
from core.task.loss import GRADIENT_NORM
from trainers.replay.capsule.trail import Operation, Trail, first_bad, functions_run_eagerly, is_finite

MOST_ROWS = 8  # rows to report


class Finding(NamedTuple):
    """The first non-finite values of a step, and their origin."""

    phase: str
    what: list[str]  # the loss, gradients of parameters, or written variables
    origin: Operation | None  # the first operation with finite inputs and a non-finite output
    features: list[str]  # non-finite inputs of the phase
    rows: list[int] | None  # the first rows of the step that aren't finite alone; `None`: unknown


def find_bad(train_step: TrainStep, batch: Batch, index: int, trail: Trail) -> Finding | None:
    """Repeats step `index` with `batch` [microbatches, rows, ...]. Returns the first finding. Variables are updated."""
    values, microbatches = dict(batch), shape_of(batch)[0]
    outputs: Batch
    found: Finding | None = None
    kept: Finding | None = None  # a history's values, unless they break an update in the same step
    for plan in train_step.plans:
        phase = plan.phase
        if index % phase.every:
            continue
        rng = train_step.rng_of(phase, tf.constant(index, tf.int64))
        mine = cut({key: values[key] for key in plan.reads}, plan.microbatches)
        if isinstance(phase, Compute) and phase.state is not None:
            found, outputs = _history(train_step, plan, values, index, trail)
            kept, found = kept or found, None
        elif isinstance(phase, Compute):
            with trail.following():
                outputs = compute(phase.outputs, mine, rng, name=phase.name, narrowing=plan.narrowing)
        elif plan.through is not None:
            found, outputs = _through(train_step, plan, values, index, trail)
        else:
            found, outputs = _update(train_step, plan, phase, mine, rng, trail)
        if found:
            return found
        values |= cut(outputs, microbatches)
    return kept


def _update(
    train_step: TrainStep, plan: Plan, phase: Update, mine: Batch, rng: Rng, trail: Trail
) -> tuple[Finding | None, Batch]:
    loss_scale, optimizer = train_step.loss_scales.get(plan.name), train_step.optimizers[plan.name]
    with trail.following():
        accumulated, outputs = accumulate_gradients(
            phase.loss,
            phase.variables(),
            mine,
            rng,
            name=phase.name,
            precision=plan.narrowing,
            loss_scale=loss_scale,
            clip_examples=phase.clip_examples,
            curvature_due=optimizer.curvature_due,
            sampled_loss=plan.sampled_loss,
        )
    if less := _less_than_nothing(accumulated.sums):
        return _found(plan, mine, less, None), outputs
    paths = {id(v): path for path, v in train_step.variables.items()}
    parameters = optimizer.parameters
    overflow_allowed = loss_scale is not None and bool(loss_scale.can_fall())
    gradients = {} if overflow_allowed else accumulated.gradients
    suspects = {f"the gradient of `{paths[id(parameters[path])]}`": x for path, x in gradients.items()}
    suspects = {"its loss": accumulated.sums["loss"], **suspects}
    bad = {name: x.values if isinstance(x, tf.IndexedSlices) else x for name, x in suspects.items()}
    bad = {name: x for name, x in bad.items() if not is_finite(x)}
    if bad:
        origin = trail.origin(bad.values())
        rows = _rows_made(origin, mine) if phase.mixes_rows else guilty_rows(phase, mine, rng, plan.narrowing)
        return _found(plan, mine, list(bad), origin, rows), outputs
    well = tf.constant(True)
    with trail.following():
        _, sums = write_update(phase, optimizer, accumulated, well, weighted=plan.weighted, loss_scale=loss_scale)
    return _written(plan, mine, sums[GRADIENT_NORM], trail), outputs


def _through(
    train_step: TrainStep, plan: Plan, values: Batch, index: int, trail: Trail
) -> tuple[Finding | None, Batch]:
    """Runs an update whose gradients continue through a `Compute`. Finds bad sums and values, but no bad gradients."""
    _, sums, outputs = _run(train_step, plan, values, index, trail)
    mine = {key: values[key] for key in plan.reads}
    if less := _less_than_nothing(sums):
        return _found(plan, mine, less, None), outputs
    if not is_finite(sums["loss"]):
        return _found(plan, mine, ["its loss"], trail.origin([sums["loss"]])), outputs
    return _written(plan, mine, sums[GRADIENT_NORM], trail), outputs


def _history(
    train_step: TrainStep, plan: Plan, values: Batch, index: int, trail: Trail
) -> tuple[Finding | None, Batch]:
    """Runs a `Compute` with `state`, whose new values are written; finds non-finite values among them."""
    _, _, outputs = _run(train_step, plan, values, index, trail)
    written = dict(trail.written)
    trail.written.clear()  # later updates report only their own writes
    if not written:
        return None, outputs
    what = [f"the phase's history in `{path}`" for path in written]
    return _found(plan, {key: values[key] for key in plan.reads}, what, first_bad(written.values())), outputs


def _run(
    train_step: TrainStep, plan: Plan, values: Batch, index: int, trail: Trail
) -> tuple[tf.Tensor, Mapping[str, Any], Batch]:
    """Runs the phase of `plan` with the engine, while `trail` records its operations."""
    placed = {key: Placed(x, True) for key, x in values.items()}
    with trail.following():
        found: tuple[tf.Tensor, Mapping[str, Any], Batch]
        found = train_step.runner.run(plan, placed, tf.constant(index, tf.int64), tf.constant(True))
    return found


def _less_than_nothing(sums: Mapping[str, Any]) -> list[str]:
    """Returns `[text]` if the sum of weights is negative, because that makes a step fail; else an empty list."""
    weight = float(sums["weight"])
    return [f"the sum of its weights, {weight}, which is a count"] if weight < 0.0 else []


def _written(plan: Plan, mine: Batch, norm: tf.Tensor, trail: Trail) -> Finding | None:
    """Returns a finding if an update with a finite loss wrote non-finite values, or has a non-finite gradient norm."""
    what = [f"the new value of `{path}`" for path in trail.written]
    if not is_finite(norm):
        return _found(plan, mine, ["the norm of its gradients", *what], trail.origin([norm]))
    return _found(plan, mine, what, first_bad(trail.written.values())) if trail.written else None


def _found(
    plan: Plan, mine: Batch, what: list[str], origin: Operation | None, rows: list[int] | None = None
) -> Finding:
    features = [key for key, x in mine.items() if not is_finite(x)]
    if features and origin is not None and not (origin.lines or origin.gradient_of):
        origin = None  # an operation of the engine, which passed on the batch
    return Finding(plan.name, what, origin, features, rows)


def _rows_made(origin: Operation | None, mine: Batch) -> list[int] | None:
    """Returns the non-finite rows in the output of `origin`; `None` unless the output has one row per batch row.

    Used for phases that mix rows, whose step functions can't be called with single rows.
    """
    microbatches, rows = shape_of(mine)
    by_row = origin is not None and microbatches == 1 and origin.length == rows
    return list(origin.places) if origin is not None and by_row else None


def guilty_rows(phase: Update, values: Batch, rng: Rng, narrowing: Narrowing = AS_GIVEN) -> list[int]:
    """Returns the first rows with a non-finite loss or gradient. `values` are [microbatches, rows, ...].

    Searches by bisection: each half that isn't finite is split again, so few bad rows take few calls. Each row keeps
    its random numbers.
    """
    microbatches, rows = shape_of(values)

    def goes_wrong(first: int, end: int) -> bool:
        m, begin = divmod(first, rows)
        part = {key: x[m : m + 1, begin : begin + end - first] for key, x in values.items()}
        mine = rng._replace(first_row=first, num_rows=end - first)
        # Tracing a function for each number of rows would take longer than calling it eagerly.
        with untraced(), functions_run_eagerly():
            made, _ = accumulate_gradients(
                phase.loss, phase.variables(), part, mine, name=phase.name, precision=narrowing
            )
        return not all(map(is_finite, tf.nest.flatten([made.sums["loss"], made.gradients], expand_composites=True)))

    def search(first: int, end: int) -> Iterator[int]:
        if not goes_wrong(first, end):
            return
        if end - first == 1:
            yield first
            return
        middle = (first + end) // 2
        yield from search(first, middle)
        yield from search(middle, end)

    found = list[int]()
    for m in range(microbatches):
        for row in search(m * rows, (m + 1) * rows):
            found.append(row)
            if len(found) == MOST_ROWS:
                return found
    return found
