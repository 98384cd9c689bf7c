"""Checks that a row's loss depends on that row alone, whatever its position in the batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from core.graphs import ancestors, is_own, line
from core.metrics import State
from core.task import Batch, Loss, Task
from core.testing.batch import relative
from core.testing.operations import VARIABLE, reductions
from core.testing.perturb import nudged_steps
from core.testing.traced import Seen, Step

TOLERANCE = 1e-4
CURE = "Return one loss per row, and let the engine take the mean; what rows count goes into `weight`."


def assert_rows(task: Task, batch: Batch, *, seed: int = 0) -> None:
    """Asserts that a row's loss depends on that row alone.

    In a phase that `mixes_rows`, it asserts only that the order of the rows doesn't matter.
    """
    for step in nudged_steps(task, batch, seed=seed):
        check_rows(step)


def check_rows(step: Step) -> None:
    """Asserts for one traced step that each row's loss depends on that row alone."""
    assert step.rows >= 3, f"the batch has {step.rows} rows; give at least 3 to see whether they depend on each other."
    seen = step()
    _check_not_one(step, seen)
    if step.keeps_history or (step.phase is None and _may_mix_in_evaluation(step)):
        return
    if not step.mixes_rows:
        _check_apart(step)
    _check_order(step, seen)


def _check_not_one(step: Step, seen: Seen) -> None:
    """Raises an `AssertionError` if all rows have the same loss, which is then probably a mean over the batch."""
    losses = seen.per_example.reshape(step.rows, -1)
    same = np.ptp(losses, axis=0).max(initial=0.0) == 0.0 and np.all(np.isfinite(losses))
    differ = any(len(np.unique(x.numpy(), axis=0)) > 1 for x in step.batch.values())
    learnt = VARIABLE in step.sources[step.loss.per_example.op.name] and losses.any()
    assert not (same and differ and learnt and _reads_rows(step)), (
        f"all rows of {step.name} have the same loss, {losses[0, 0]:.6g}: it is a mean or sum over the batch, handed "
        f"to each row{_reduced(step)}. {CURE}"
    )


def _reads_rows(step: Step) -> bool:
    """Says whether the loss depends on the batch or on noise per row. A penalty on weights doesn't."""
    if step.sources[step.loss.per_example.op.name] - {VARIABLE}:
        return True
    needed = ancestors([step.loss.per_example.op])
    return any(_over_rows(step, draw.op) and draw.op.name in needed for draw in step.draws)


def _check_apart(step: Step) -> None:
    """Asserts that a part of the batch, computed alone, has the values that it has within the batch."""
    whole = step.eager()
    for rows in (slice(0, 1), slice(1, step.rows), slice(step.rows // 2, step.rows)):
        part = step.eager({key: x[rows] for key, x in step.batch.items()}, first_row=rows.start)
        for name, one, other in _by_row(whole, part, step.rows, rows):
            found = apart(one, other)
            if found > TOLERANCE:
                what = f"`{name}` of row {rows.start}" if rows.stop - rows.start == 1 else f"`{name}` of some rows"
                raise AssertionError(
                    f"{what} in {step.name} differs by {found:.2g} where other rows are missing from the batch: "
                    f"{_reason(step)}"
                )


def _check_order(step: Step, seen: Seen) -> None:
    """Asserts that permuting rows and their random numbers permutes the losses."""
    order = np.random.RandomState(0).permutation(step.rows)
    if step.phase is None or (step.mixes_rows and _draws_partners(step)):  # such draws keep their places
        return
    moved = step({key: tf.gather(x, order) for key, x in step.batch.items()}, order=order.tolist())
    counts = seen.weight[order] != 0.0
    found = apart(np.where(counts, seen.per_example[order], 0.0), np.where(counts, moved.per_example, 0.0))
    assert found <= TOLERANCE, (
        f"the losses of {step.name} change by {found:.2g} with the order of the rows: a row meets its neighbours. Look "
        "for `tf.roll`, `tf.reverse`, `tf.cumsum`, slices and reshapes over the first axis, and for axes that are "
        "swapped. A batch is a set: what belongs together is one row."
    )


def _draws_partners(step: Step) -> bool:
    """Says whether the step pairs rows at random, as mixup does: with one draw for the whole batch."""
    shared = {draw.op.name for draw in step.draws if _over_rows(step, draw.op) and not _by_rows(draw.op)}
    gathers = [op for op in step.operations if op.type in ("GatherV2", "GatherNd")]
    return any(shared & ancestors([op.inputs[1].op]) for op in gathers)


def _reason(step: Step) -> str:
    """Returns why a row's loss probably depends on other rows, and how to fix it."""
    for draw in step.draws:
        if _over_rows(step, draw.op) and not _by_rows(draw.op):
            return (
                f"its random numbers aren't the row's own {line(draw.op)}. Draw them from `rng.rows` "
                "(`rng.rows.normal(*x.shape)` in place of `rng.normal(x.shape)`)."
            )
    if step.makes_statistics:
        return (
            "a layer normalises over the rows of the batch. That is what `mixes_rows=True` of the phase is for, "
            "together with `sync=True` of the layer (`BatchNorm(size, sync=True)`)."
        )
    if step.phase is None and any(phase.mixes_rows for phase in step.task.phases()):
        return (
            "it takes statistics of the batch. Evaluate with the moving averages: call the network without "
            "`statistics`."
        )
    for op in step.operations:
        if op.type in ("Sub", "SquaredDifference", "Mul", "AddV2", "Maximum", "Equal"):
            out = op.outputs[0].shape.as_list() if op.outputs[0].shape.rank else []
            alone = all(x.shape.rank in (1, 2) and step.rows in x.shape.as_list() for x in op.inputs)
            meant = any(x.op.type in ("ExpandDims", "StridedSlice", "Reshape") for x in op.inputs if x.shape.rank == 2)
            if out == [step.rows] * 2 and alone and not meant and op.inputs[0].shape != op.inputs[1].shape:
                shapes = " and ".join(str(x.shape.as_list()) for x in op.inputs)
                return (
                    f"{shapes} were broadcast to {out} {line(op)}, each row against all others. Give both "
                    "the same shape (`x[:, 0]` or `y[:, tf.newaxis]`)."
                )
    moved = _check_moves(step)
    if not moved and any(_compares_rows(step, op) for op in step.operations):
        return (
            "it compares the row with the others. Set `mixes_rows=True` on the phase, and compare with the rows of "
            "all replicas, which `all_rows(x)` from `core.task` gives, as `losses.info_nce` does."
        )
    if moved:
        return moved
    return f"it is computed from others as well, by a mean, sum or norm over the batch{_reduced(step)}. {CURE}"


def _compares_rows(step: Step, op: Any) -> bool:
    """Says whether `op` multiplies features of all rows with features of all rows."""
    if op.type not in ("MatMul", "BatchMatMulV2", "Einsum") or op.outputs[0].shape.as_list() != [step.rows] * 2:
        return False
    return all(VARIABLE in step.sources[x.op.name] and x.shape[0] == step.rows for x in op.inputs)


def _check_moves(step: Step) -> str | None:
    try:
        _check_order(step, step())
    except AssertionError as error:
        return str(error)
    return None


def _reduced(step: Step) -> str:
    """Returns the line of code that reduces over the rows on the way to the loss; empty if there is none."""
    needed = ancestors([step.loss.per_example.op])
    if step.loss.weight is not None:
        needed |= ancestors([step.loss.weight.op])
    for op in reductions(step.operations, step.rows):
        if op.name in needed and is_own(op):
            return f" {line(op)}"
    return ""


def _over_rows(step: Step, op: Any) -> bool:
    """Says whether the random draw `op` has one of its first two axes over the rows."""
    shape = op.outputs[0].shape
    return bool(shape.rank and step.rows in shape.as_list()[:2])


def _by_rows(op: Any) -> bool:
    """Says whether the random operation `op` comes from `rng.rows`. If so, `Step` can permute its rows."""
    return any(frame.name == "bits" and frame.filename.endswith("traced.py") for frame in op.traceback)


def _may_mix_in_evaluation(step: Step) -> bool:
    """Says whether evaluation may compare rows: a phase mixes rows, and no layer normalises over rows."""
    normalises = any(callable(getattr(module, "averages", None)) for module in step.task.submodules)
    return not normalises and any(phase.mixes_rows for phase in step.task.phases())


def _by_row(whole: Loss, part: Loss, count: int, rows: slice) -> Iterator[tuple[str, Any, Any]]:
    """Yields `(name, value in whole, value in part)` for `rows`. For a row of weight 0, both values are 0."""
    counts = np.ones(whole.per_example.shape, bool) if whole.weight is None else whole.weight.numpy() != 0.0
    named: dict[str, tuple[Any, Any]] = {"per_example": (whole.per_example, part.per_example)}
    if whole.weight is not None:
        named["weight"] = (whole.weight, part.weight)
    named |= {
        f"metrics[{key!r}]": (x, part.metrics[key]) for key, x in whole.metrics.items() if not isinstance(x, State)
    }
    named |= {f"outputs[{key!r}]": (x, part.outputs[key]) for key, x in whole.outputs.items()}
    for name, (one, other) in named.items():
        one, other = np.asarray(one)[rows], np.asarray(other)
        if one.dtype.kind not in "fiub":
            continue
        if one.shape == counts[rows].shape and name != "weight":
            one, other = np.where(counts[rows], one, 0), np.where(counts[rows], other, 0)
        yield name, one, other


def apart(one: Any, other: Any) -> float:
    """Returns the largest |one - other| / max(1, |one|). Equal infinities, or two NaN, count as equal."""
    if one.shape != other.shape:
        return float("inf")
    return float(np.max(relative(one.astype(np.float64), other.astype(np.float64)), initial=0.0))
