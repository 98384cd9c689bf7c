"""Assertions for your own step functions: no strategy, no trainer, no gin.

    def test_my_task():
        task = SpiralTask(rng=Rng.from_seed(0), optimizer=adamw(1e-2))
        assert_step_function(task.loss, batch)
        assert_updates_only(task, "net", task.net, batch)
        assert_overfits(task, batch)

Each raises an `AssertionError` that says what was found and what to do. They run a step the plain way, eagerly and one
phase after the other, which also makes them a second opinion on the engine.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from core.loss_spec import checked, weighted_sums
from core.module import named_variables
from core.optimizers import Optimizer
from core.random import Rng
from core.task import Batch, Compute, Loss, Task, Update


def assert_step_function(
    loss: Callable[[Batch, Rng], Loss],
    batch: Batch,
    *,
    seed: int = 0,
    mixes_rows: bool = False,
    tolerance: float = 1e-5,
) -> Loss:
    """`loss` is finite per example, repeats itself, is the same traced and, unless it `mixes_rows`, row by row.

    Returns the `Loss`, for assertions of your own.
    """
    rows = len(next(iter(batch.values())))
    rng = Rng.from_seed(seed)._replace(num_rows=rows)
    first = checked(loss(batch, rng), getattr(loss, "__name__", "loss"), rows)
    values = first.per_example.numpy()
    counts = np.ones(values.shape, bool) if first.weight is None else first.weight.numpy() != 0.0
    bad = np.argwhere(counts & ~np.isfinite(values))[:5].tolist()
    assert not bad, f"`per_example` isn't finite at {bad}: look for a division, logarithm or square root of zero."
    _assert_close(loss(batch, rng), first, 0.0, "a second call with the same `rng`", "draw all randomness from `rng`.")
    traced = tf.function(lambda b: loss(b, rng), autograph=False)(dict(batch))
    _assert_close(traced, first, tolerance, "tracing", "Python values and prints are fixed while tracing.")
    if not mixes_rows:
        for row in range(rows):
            one = {key: x[row : row + 1] for key, x in batch.items()}
            alone = loss(one, rng._replace(first_row=row, num_rows=1)).per_example
            found = float(np.max(np.abs(np.where(counts[row], alone.numpy()[0] - values[row], 0.0))))
            assert found <= tolerance * max(1.0, float(np.max(np.abs(values[row])))), (
                f"row {row} alone has another loss than within the batch (by {found:.2g}). Draw per-example randomness "
                "from `rng.rows`; if rows are meant to be mixed (batch statistics, contrast), say `mixes_rows=True`."
            )
    return first


def assert_updates_only(task: Task, phase: str, module: tf.Module, batch: Batch, *, seed: int = 0) -> None:
    """The update `phase` changes every parameter of `module` and leaves all other variables of `task` bit for bit."""
    names = [p.name for p in task.phases() if isinstance(p, Update)]
    assert phase in names, f"there is no update `{phase}`; the task has {', '.join(f'`{name}`' for name in names)}."
    own = {id(v) for v in named_variables(module, trainable_only=True).values()}
    before = {path: v.numpy() for path, v in named_variables(task).items()}
    _plain_step(task, _optimizers(task), batch, Rng.from_seed(seed), only=phase)
    for path, variable in named_variables(task).items():
        changed = before[path].tobytes() != variable.numpy().tobytes()
        assert changed or id(variable) not in own, (
            f"phase `{phase}` left `{path}` as it was: its gradient is zero for this batch, or it isn't among `trains`."
        )
        assert not changed or id(variable) in own, (
            f"phase `{phase}` changed `{path}`, which isn't part of the module it should train: look at its `trains`."
        )


def assert_overfits(task: Task, batch: Batch, *, steps: int = 200, to: float = 0.1, seed: int = 0) -> None:
    """Within `steps` steps on one batch each loss falls below `to` times what it was: the task can learn at all."""
    assert steps >= 2, f"`steps` is {steps}; it takes two to see a loss fall."
    optimizers = _optimizers(task)
    rng = Rng.from_seed(seed)
    step = tf.function(lambda i: _plain_step(task, optimizers, batch, rng.fold(i)), autograph=False)
    first = {name: float(x) for name, x in step(tf.constant(0)).items()}
    for i in range(1, steps):
        last = step(tf.constant(i))
    for name, start in first.items():
        end = float(last[name])
        assert start > 0.0, f"the loss of phase `{name}` starts at {start:.4g}; a fall to {to} times that says nothing."
        assert end <= to * start, (
            f"the loss of phase `{name}` went from {start:.4g} to {end:.4g} in {steps} steps on one batch, which is "
            f"not below {to} times the start. Check the labels, the learning rate, and that outputs have no "
            "activation the loss applies itself; or allow more `steps`."
        )


def _optimizers(task: Task) -> dict[str, Optimizer]:
    return {p.name: Optimizer(p.optimizer, p.variables()) for p in task.phases() if isinstance(p, Update)}


def _plain_step(
    task: Task, optimizers: Mapping[str, Optimizer], batch: Batch, rng: Rng, *, only: str | None = None
) -> dict[str, tf.Tensor]:
    """One step on one device and one microbatch; applies the update `only`, or all. Returns the mean losses."""
    values = dict(batch)
    rows = len(next(iter(values.values())))
    losses = {}
    for phase in task.phases():
        here = rng.fold(phase.name)._replace(num_rows=rows)
        if isinstance(phase, Compute):
            values |= phase.fn(values, here)
            continue
        optimizer = optimizers[phase.name]
        with tf.GradientTape() as tape:
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


def _assert_close(found: Loss, expected: Loss, tolerance: float, what: str, remedy: str) -> None:
    for name in ("per_example", "weight", "metrics", "outputs"):
        both = [tf.nest.flatten(getattr(loss, name)) for loss in (expected, found)]
        for x, y in zip(*both, strict=True):
            if x is not None:
                a, b = tf.cast(x, tf.float64), tf.cast(y, tf.float64)
                difference = float(tf.reduce_max(tf.abs(a - b) / tf.maximum(1.0, tf.abs(a))))
                assert not difference > tolerance, f"`{name}` changed by {difference:.2g} under {what}: {remedy}"
