"""Checks a step function without a task: it must be finite, repeatable, traceable, and independent by row."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from core.random import Rng
from core.task import Batch, Loss
from core.task.loss import checked
from core.testing.batch import HALFWAY, as_tensors


def assert_step_function(
    loss: Callable[[Batch, Rng], Loss],
    batch: Batch,
    *,
    seed: int = 0,
    mixes_rows: bool = False,
    tolerance: float = 1e-5,
) -> Loss:
    """Asserts that `loss` is finite, per example, repeatable, and the same when traced. Returns the `Loss`.

    Unless it `mixes_rows`, each row alone must have the same loss as in the batch.
    """
    batch = as_tensors(batch)
    rows = len(next(iter(batch.values())))
    rng = Rng.from_seed(seed, **HALFWAY)._replace(num_rows=rows)
    first = checked(loss(batch, rng), getattr(loss, "__name__", "loss"), rows)
    values = first.per_example.numpy()
    counts = np.ones(values.shape, bool) if first.weight is None else first.weight.numpy() != 0.0
    bad = np.argwhere(counts & ~np.isfinite(values))[:5].tolist()
    assert not bad, f"`per_example` isn't finite at {bad}: look for a division, logarithm or square root of zero."
    _assert_close(loss(batch, rng), first, 0.0, "a second call with the same `rng`", "draw all randomness from `rng`.")
    traced = tf.function(lambda b: loss(b, rng)._replace(statistics=None), autograph=False)(dict(batch))
    _assert_close(traced, first, tolerance, "tracing", "Python values and prints are fixed while tracing.")
    if not mixes_rows:
        for row in range(rows):
            one = {key: x[row : row + 1] for key, x in batch.items()}
            alone = loss(one, rng._replace(first_row=row, num_rows=1)).per_example
            found = float(np.max(np.abs(np.where(counts[row], alone.numpy()[0] - values[row], 0.0))))
            assert found <= tolerance * max(1.0, float(np.max(np.abs(values[row])))), (
                f"row {row} alone has another loss than within the batch (by {found:.2g}). Return one loss per row, "
                "without a mean, sum or norm over the batch (the engine takes the mean), and draw per-example "
                "randomness from `rng.rows`. `mixes_rows=True` is for rows that are compared with each other, and for "
                "layers that normalise over them."
            )
    return first


def _assert_close(found: Loss, expected: Loss, tolerance: float, what: str, remedy: str) -> None:
    for name in ("per_example", "weight", "metrics", "outputs"):
        both = [tf.nest.flatten(getattr(loss, name)) for loss in (expected, found)]
        for x, y in zip(*both, strict=True):
            if x is not None:
                if x.dtype == tf.string:
                    assert bool(tf.reduce_all(x == y)), f"`{name}` changed under {what}: {remedy}"
                    continue
                a, b = tf.cast(x, tf.float64), tf.cast(y, tf.float64)
                difference = float(tf.reduce_max(tf.abs(a - b) / tf.maximum(1.0, tf.abs(a))))
                assert not difference > tolerance, f"`{name}` changed by {difference:.2g} under {what}: {remedy}"
