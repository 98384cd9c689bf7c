"""The specification of a training step: plain code for one device, without the engine.

The engine must give the same results up to the rounding of sums, for any number of replicas and any placements. If a
phase's rows are independent, this also holds for any number of microbatches. One difference is deliberate: if a loss
isn't finite, the engine ends the run before it writes variables.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from core.module import named_variables
from core.optimizers import Optimizer
from core.random import Rng
from core.task import Batch, Compute, Loss, Task, Update
from core.task.loss import checked, weighted_sums
from core.task.statistics import Values, commit, refreshed


def optimizers_of(task: Task) -> dict[str, Optimizer]:
    """Makes an optimizer for each update: `{phase name: optimizer}`."""
    return {p.name: Optimizer(p.optimizer, p.variables()) for p in task.phases() if isinstance(p, Update)}


def plain_step(
    task: Task,
    optimizers: Mapping[str, Optimizer],
    batch: Batch,
    rng: Rng,
    *,
    index: int = 0,
    microbatches: int = 1,
    only: str | None = None,
) -> dict[str, tf.Tensor]:
    """Takes step `index` on the whole batch; returns the mean losses. With `only`, no other update writes."""
    values, losses, computes = dict(batch), dict[str, tf.Tensor](), dict[str, Compute]()
    for phase in task.phases():
        if index % phase.every:
            continue
        if isinstance(phase, Compute):
            computes[phase.name] = phase
            if phase.state is None:
                values |= _computed(phase, values, rng, microbatches)
                continue
            (made,) = _by_microbatch(phase.fn, values, rng.fold(phase.name), 1)  # history sees the whole batch
            values |= made[0]
            if only is None:
                commit(made[1])
            continue
        optimizer = optimizers[phase.name]
        with tf.GradientTape(persistent=phase.clip_examples is not None) as tape:
            if phase.through is not None:  # recomputed under the tape
                values |= _computed(computes[phase.through], values, rng, microbatches)
            parts = phase.microbatches or microbatches
            parts = parts if phase.clip_examples is None else _rows(values)
            made = _by_microbatch(phase.loss, values, rng.fold(phase.name), parts)
            results = [checked(loss, phase.name, _rows(values) // len(made)) for loss in made]
            sums = [weighted_sums(loss) for loss in results]
            weight = tf.add_n([figures["weight"] for _, figures in sums])
            mean = tf.math.divide_no_nan(tf.add_n([objective for objective, _ in sums]), weight)
        if phase.clip_examples is None:
            gradients = tape.gradient(mean, optimizer.parameters)
        else:
            each = [tape.gradient(objective, optimizer.parameters) for objective, _ in sums]
            gradients = _mean_clipped(each, phase.clip_examples, parts / weight)
        missing = [path for path, gradient in gradients.items() if gradient is None]
        assert not missing, f"phase `{phase.name}` trains {missing}, but its loss doesn't depend on them."
        if only in (None, phase.name):
            if optimizer.curvature_due:
                estimate = _curvature(phase, values, rng.fold(phase.name), parts, optimizer.parameters)
                optimizer.take_curvature(estimate, apply_if=weight > 0.0)
            optimizer.apply(gradients, value=mean, apply_if=weight > 0.0)  # without weight, nothing is learnt
            commit(_untrained(phase, results), apply_if=weight > 0.0)
        values |= _joined(loss.outputs for loss in results)
        losses[phase.name] = mean
    return losses


def _computed(phase: Compute, values: Batch, rng: Rng, microbatches: int) -> dict[str, tf.Tensor]:
    return _joined(_by_microbatch(phase.fn, values, rng.fold(phase.name), phase.microbatches or microbatches))


def _by_microbatch(fn: Callable[[Batch, Rng], Any], values: Batch, rng: Rng, microbatches: int) -> list[Any]:
    """Calls `fn(rows, rng)` for each microbatch. `rng` draws the random numbers of its rows."""
    rows = _rows(values) // microbatches
    return [
        fn({key: x[first : first + rows] for key, x in values.items()}, rng._replace(first_row=first, num_rows=rows))
        for first in range(0, rows * microbatches, rows)
    ]


def _curvature(
    phase: Update, values: Batch, rng: Rng, parts: int, parameters: Mapping[str, tf.Variable]
) -> dict[str, tf.Tensor]:
    curvature = phase.optimizer.curvature
    estimate = _gauss_newton if curvature and curvature.sampled else _hutchinson
    return estimate(phase, values, rng, parts, parameters)


def _gauss_newton(
    phase: Update, values: Batch, rng: Rng, parts: int, parameters: Mapping[str, tf.Variable]
) -> dict[str, tf.Tensor]:
    """Returns B ĝ ⊙ ĝ for the mean gradient ĝ of B losses on labels drawn from the model."""
    assert phase.sampled_loss
    with tf.GradientTape() as tape:
        sums = [weighted_sums(loss) for loss in _by_microbatch(phase.sampled_loss, values, rng, parts)]
        weight = tf.add_n([figures["weight"] for _, figures in sums])
        mean = tf.math.divide_no_nan(tf.add_n([objective for objective, _ in sums]), weight)
    gradients = tape.gradient(mean, parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return {path: weight * tf.square(tf.convert_to_tensor(gradient)) for path, gradient in gradients.items()}


def _hutchinson(
    phase: Update, values: Batch, rng: Rng, parts: int, parameters: Mapping[str, tf.Variable]
) -> dict[str, tf.Tensor]:
    """Returns Hutchinson's estimate u ⊙ H u of the Hessian's diagonal, in forward mode over the gradient."""
    draws = rng.fold("curvature")
    signs = {path: tf.sign(draws.fold(path).normal(tuple(v.shape))) for path, v in parameters.items()}
    with tf.autodiff.ForwardAccumulator([*parameters.values()], [*signs.values()]) as forward:
        with tf.GradientTape() as tape:
            sums = [weighted_sums(loss) for loss in _by_microbatch(phase.loss, values, rng, parts)]
            weight = tf.add_n([figures["weight"] for _, figures in sums])
            mean = tf.math.divide_no_nan(tf.add_n([objective for objective, _ in sums]), weight)
        gradients = tape.gradient(mean, parameters)
        gradients = {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}
    found = {path: forward.jvp(gradient, tf.UnconnectedGradients.ZERO) for path, gradient in gradients.items()}
    return {path: u * found[path] for path, u in signs.items()}


def _mean_clipped(each: list[Any], limit: float, share: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the mean of gradients by example, of which each, times `share`, is clipped to the norm `limit`."""
    clipped = []
    for gradients in each:
        gradients = {path: share * tf.convert_to_tensor(g) for path, g in gradients.items()}
        norm = tf.linalg.global_norm(list(gradients.values()))
        clipped.append({path: g * tf.minimum(1.0, limit / norm) for path, g in gradients.items()})
    return {path: tf.add_n([gradients[path] for gradients in clipped]) / len(clipped) for path in clipped[0]}


def _rows(values: Batch) -> int:
    return len(next(iter(values.values())))


def _joined(parts: Iterable[Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    parts = list(parts)
    return {key: tf.concat([part[key] for part in parts], 0) for key in parts[0]}


def _untrained(phase: Update, results: list[Loss]) -> Values:
    """Returns new values of moving averages and derived state, only for the modules that `phase` trains."""
    values: Values = {}
    if results[0].statistics:
        sums = [loss.statistics.sums for loss in results if loss.statistics]
        values |= results[0].statistics.averages(tf.nest.map_structure(lambda *xs: tf.add_n(xs), *sums))
    own = set()
    for module in [phase.trains] if isinstance(phase.trains, tf.Module) else phase.trains:
        values |= refreshed(module)  # from the updated parameters
        own |= {variable.ref() for variable in named_variables(module).values()}
    return {reference: value for reference, value in values.items() if reference in own}
