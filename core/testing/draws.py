"""Checks that random numbers are drawn anew for each purpose and in each step."""

import numpy as np

from core.graphs import line
from core.task import Batch, Task
from core.testing.traced import Draw, Step, steps


def assert_draws(task: Task, batch: Batch, *, seed: int = 0) -> None:
    """Asserts that no phase of `task` draws the same random numbers twice, within a step or in two steps."""
    for step in steps(task, batch, seed=seed):
        check_draws(step)


def check_draws(step: Step) -> None:
    """Asserts for one traced step that it doesn't draw the same random numbers twice."""
    first: dict[bytes, Draw] = {}
    draws = step().draws
    for draw in draws:
        if draw.again:
            continue
        one = first.setdefault(np.ravel(draw.key).tobytes() + np.ravel(draw.counter).tobytes(), draw)
        assert one is draw, (
            f"{step.name} draws the same random numbers for two purposes, {line(one.op)} and "
            f"{line(draw.op)}: they are equal instead of independent. Give each a separate `Rng`: "
            '`rng.fold("noise")`, `rng.fold("mask")`. If they should be equal, draw from `rng.again()`.'
        )
    if step.phase is None:
        return
    later = {np.ravel(draw.key).tobytes() for draw in step(seed=1).draws}
    for draw in draws:
        assert np.ravel(draw.key).tobytes() not in later, (
            f"{step.name} draws the same random numbers in every step {line(draw.op)}: they don't come from "
            "the `rng` that it is given. Use that one (`rng.fold(...)`), not one that was made from a seed."
        )
