"""Checks that padding doesn't affect losses, and that all valid positions do.

assert_padding(task, batch, "mask")      # [rows, time]: nonzero at valid positions
assert_padding(task, batch, "document")  # [rows, time]: a number from 0 on, negative for padding
assert_padding(task, batch, "lengths")   # [rows]: the number of valid positions of each row
assert_padding(task, batch, "weight")    # [rows]: zero for padding rows
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from core.task import Batch, Loss, Task
from core.testing.perturb import changed, nudged_steps
from core.testing.traced import Seen, Step

TOLERANCE = 1e-4
NAMES = ("mask", "weight", "weights", "lengths", "length")  # features that mark padding, unless one is named


def assert_padding(task: Task, batch: Batch, padding: str, *, seed: int = 0) -> None:
    """Asserts that padding, marked by the feature `padding`, changes nothing, and that valid positions count."""
    for step in nudged_steps(task, batch, seed=seed):
        check_padding(step, padding)


def found_in(batch: Mapping[str, tf.Tensor]) -> str | None:
    """Returns the name of a feature that marks padding, such as "mask" or "lengths"; `None` if there is none."""
    for name in NAMES:
        x = batch.get(name)
        if x is None or x.shape.rank not in (1, 2):
            continue
        values = x.numpy()
        if name in ("lengths", "length"):
            if values.ndim == 1 and values.dtype.kind in "iu" and _time(batch, values) is not None:
                return name
        elif (values == 0).any() and (values != 0).any():
            real = values != 0
            if values.ndim == 1 or bool(np.all(real[:, :-1] >= real[:, 1:])):  # otherwise it is a selection
                return name
    return None


def check_padding(step: Step, padding: str) -> None:
    """Asserts for one traced step that padding changes nothing, and that valid positions count."""
    named = step.batch.get(padding)
    assert named is not None, f"`{padding}` isn't in the batch; name the feature that says what is padded."
    values = named.numpy()
    if values.ndim == 1 and values.dtype.kind in "iu" and values.max() > 1:
        time = _time(step.batch, values)
        assert time is not None, f"`{padding}` holds lengths, but no feature of the batch is `[rows, time, ...]`."
        real = np.arange(time) < values[:, np.newaxis]
    else:
        real = values >= 0 if _is_numbers(values) else values != 0
    usable = real.ndim in (1, 2) and 0 < np.count_nonzero(real) < real.size
    assert usable, (
        f"`{padding}` of shape {list(values.shape)} leaves out {'nothing' if real.all() else 'all'}; give a batch of "
        "which it leaves out a part, by `[rows]` or `[rows, time]`."
    )
    seen = step()
    _check_garbage(step, padding, real, seen)
    if real.ndim == 1:
        _check_rows(step, padding, real, seen)
        return
    _check_real_ones(step, padding, real, seen)
    _check_shorter(step, padding, real, seen)


def _check_garbage(step: Step, padding: str, real: np.ndarray, seen: Seen) -> None:
    """Asserts that other values at padded positions change neither losses nor gradients."""
    named = step.batch[padding]
    for key, x in step.batch.items():
        places = _places(key, x, padding, real)
        if places is None:
            continue
        other = step({**step.batch, key: changed(x, ~places)})
        nothing = "below zero" if _is_numbers(named.numpy()) else "zero"
        _assert_same(
            step,
            seen,
            other,
            f"what `{key}` holds {'beyond' if named.shape.rank < real.ndim else 'where'} `{padding}`"
            f"{'' if named.shape.rank < real.ndim else f' is {nothing}'}",
            "Padding is read somewhere. Look for a mask that is inverted or off by one, a mean or maximum over all "
            f"positions, and attention without a `mask`; losses are left out by `weight`, made of `{padding}`.",
        )


def _check_rows(step: Step, padding: str, real: np.ndarray, seen: Seen) -> None:
    """Asserts that the mean loss stays the same without the rows of weight 0."""
    rows = np.flatnonzero(real)
    part = step.eager({key: tf.gather(x, rows) for key, x in step.batch.items()})
    if step.mixes_rows or seen.draws:  # draws depend on a row's position
        return
    mean = _mean(part)
    assert _close(seen.mean, mean), (
        f"the loss of {step.name} is {seen.mean:.6g}, but {mean:.6g} without the rows where `{padding}` is zero: they "
        f"count in the mean. A product of loss and `{padding}` is still divided by all rows, and a custom mean "
        f"by those of one microbatch: return `Loss(per_example, weight=...)`, made of `{padding}`."
    )


def _check_real_ones(step: Step, padding: str, real: np.ndarray, seen: Seen) -> None:
    """Asserts that changing the first or the last valid position of each row changes a loss."""
    lengths = real.sum(axis=1)
    last = np.zeros_like(real)
    last[lengths > 0, real.shape[1] - 1 - np.argmax(real[lengths > 0, ::-1], axis=1)] = True
    first = np.zeros_like(real)
    first[lengths > 0, np.argmax(real[lengths > 0], axis=1)] = True
    for which, places in (("last", last), ("first", first)):
        moved = read = False
        for key, x in step.batch.items():
            at = _places(key, x, padding, places)
            if at is None or not step.hangs_on(key):
                continue
            if at.shape[1] > real.shape[1]:  # position t of the mask is the target t + 1
                at = np.concatenate([np.zeros_like(places[:, :1]), places], axis=1)
            read = True
            other = step({**step.batch, key: changed(x, at)})
            counts = seen.weight != 0.0
            moved |= not np.array_equal(counts, other.weight != 0.0)
            moved |= not np.array_equal(seen.per_example[counts], other.per_example[counts])
        assert moved or not read, (
            f"the {which} position of each row that `{padding}` keeps changes nothing in {step.name}: a mask is off by "
            f"one, or inverted. Look at how it is made of `{padding}`, and which slice of it goes with which slice of "
            "the tokens (the targets `[:, 1:]` go with the mask `[:, 1:]`)."
        )


def _check_shorter(step: Step, padding: str, real: np.ndarray, seen: Seen) -> None:
    """Asserts that the mean loss stays the same if all rows have one padded position less, or more."""
    if seen.draws:  # random numbers of another shape differ
        return
    time = real.shape[1]
    shorter = not real[:, -1].any()
    batch = {}
    for key, x in step.batch.items():
        if (x.shape.rank or 0) < 2 or x.shape[1] not in (time, time + 1):
            batch[key] = x
        elif shorter:
            batch[key] = x[:, :-1]
        elif key == padding:
            batch[key] = tf.concat([x, tf.zeros_like(x[:, :1])], 1)
        else:
            batch[key] = tf.concat([x, x[:, :1]], 1)
    try:
        loss = step.eager(batch)
    except (ValueError, tf.errors.InvalidArgumentError):  # made for one length only
        return
    mean = _mean(loss)
    assert _close(seen.mean, mean), (
        f"the loss of {step.name} is {seen.mean:.6g}, but {mean:.6g} with one position of padding "
        f"{'less' if shorter else 'more'} in all rows: it depends on the padded length. Look for means over positions, "
        f"and divide by none: return one loss per position with a `weight` made of `{padding}`, or divide by what "
        "each row has of it."
    )


def _mean(loss: Loss) -> float:
    weight = np.ones(loss.per_example.shape) if loss.weight is None else loss.weight.numpy()
    losses = np.where(weight != 0, weight * loss.per_example.numpy(), 0.0)
    return float(losses.sum(dtype=np.float64) / (weight.sum(dtype=np.float64) or 1.0))


def _places(key: str, x: tf.Tensor, padding: str, real: np.ndarray) -> Any:
    """Returns a mask of the valid positions of a feature [rows, time, ...]; `None` for the feature `padding`."""
    if key == padding:
        return None
    if real.ndim == 1:
        return real
    if (x.shape.rank or 0) < 2:
        return None
    if x.shape[1] == real.shape[1]:
        return real
    if x.shape[1] == real.shape[1] + 1:  # inputs and targets of each position in one
        return np.concatenate([real[:, :1], real], axis=1)
    return None


def _is_numbers(values: np.ndarray) -> bool:
    """Says whether `values` are document numbers: then only negative values mark padding."""
    return bool(values.dtype.kind == "i" and (values < 0).any())


def _time(batch: Mapping[str, tf.Tensor], lengths: np.ndarray) -> int | None:
    """Returns the padded length of the batch's sequences, whose valid `lengths` are given."""
    times = [x.shape[1] for x in batch.values() if (x.shape.rank or 0) >= 2 and x.shape[1] >= lengths.max()]
    return min(times, default=None)


def _assert_same(step: Step, one: Seen, other: Seen, what: str, remedy: str) -> None:
    assert _close(one.mean, other.mean), (
        f"{what} changes the loss of {step.name} from {one.mean:.6g} to {other.mean:.6g}. {remedy}"
    )
    for x, y in zip(one.figures, other.figures, strict=True):
        assert np.allclose(x, y, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True), (
            f"{what} changes a metric or the weight of {step.name}. {remedy}"
        )
    for path, gradient in one.gradients.items():
        size = max(1e-3, float(np.max(np.abs(gradient), initial=0.0)))
        assert np.allclose(gradient, other.gradients[path], atol=10 * TOLERANCE * size, equal_nan=True), (
            f"{what} changes the gradient of `{path}` in {step.name}. {remedy}"
        )


def _close(one: float, other: float, tolerance: float = TOLERANCE) -> bool:
    return bool(np.isclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=False))
