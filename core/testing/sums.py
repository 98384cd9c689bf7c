"""Checks that each position has the same weight, whatever the length of its row."""

import numpy as np

from core.task import Batch, Task
from core.testing.padding import found_in
from core.testing.perturb import nudged_steps
from core.testing.traced import Seen, Step

CURE = (
    "Return one loss per position, `[rows, time]`, with a `weight` of that shape that is zero where there is none: the "
    "engine divides by the weights' sum."
)


def assert_sums(task: Task, batch: Batch, *, seed: int = 0) -> None:
    """Asserts that no loss of `task` is a sum or mean over `time`, if rows have different lengths."""
    for step in nudged_steps(task, batch, seed=seed):
        check_sums(step)


def check_sums(step: Step) -> None:
    """Asserts for one traced step that no loss is a sum or mean over positions, if rows have different lengths."""
    seen = step()
    for kind, losses in sums_over_positions(step, seen):
        there = losses != 0.0
        padded = bool(np.all(there[:, :-1] >= there[:, 1:])) and len(set(there.sum(axis=1).tolist())) > 1
        assert not (padded and _are_positions(step, losses.shape[1])), (
            f"the loss of {step.name} is a {kind.lower()} over the {losses.shape[1]} positions of a row, of which rows "
            f"have different numbers ({', '.join(str(n) for n in there.sum(axis=1)[:4])}...): "
            + ("it is divided by the padded length" if kind == "Mean" else "long rows count more")
            + f". {CURE}"
        )


def _are_positions(step: Step, count: int) -> bool:
    """Says whether a feature of the batch is a sequence of `count` or `count + 1` positions."""
    padding = found_in(step.batch)
    for key, x in step.batch.items():
        if x.shape.rank not in (2, 3) or x.shape[1] not in (count, count + 1):
            continue
        if x.shape.rank == 3 or key == padding or padding in ("lengths", "length"):
            return True
        if x.dtype.is_integer and not np.isin(x.numpy(), (0, 1)).all():  # tokens; zeros and ones are a mask
            return True
    return False


def sums_over_positions(step: Step, seen: Seen) -> list[tuple[str, np.ndarray]]:
    """Finds the reductions over time that make the rows' losses: `[(operation type, its input [rows, time])]`."""
    found = []
    if seen.per_example.ndim == 1:
        for (_, result), (terms, total) in zip(step.sums, seen.sums, strict=True):
            share = seen.per_example / np.where(total == 0.0, np.nan, total)
            if np.all(np.isfinite(share)) and np.ptp(share) <= 1e-4 * abs(float(share[0])):
                found.append((result.op.type, terms))
    return found
