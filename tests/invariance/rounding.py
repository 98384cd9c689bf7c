"""How far a task carries rounding, on one replica alone.

Where a ReLU, an absolute value or a threshold meets a number that is zero but for rounding, the last bit decides which
way a gradient goes, and replicas, which add up in another order, may rightly part there. So the campaign first looks
for a run that keeps clear of such edges: last bits of the first weights are changed on one replica, and must not show.
Through its steps replicas are compared in a row; each step after them starts from one replica's variables.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from core.testing import Outcome, Run, on_virtual_cpus
from core.testing.invariance import differences
from tests.invariance.subjects import Subject

NUDGES = 4
SEEDS = (9, 10, 7, 8)


class Reference(NamedTuple):
    """A run on one replica."""

    seed: int
    outcomes: Sequence[Outcome]  # after each step
    steady: int  # steps in which last bits don't show


def steady_run(subject: Subject, steps: int, *, variables: float, figures: float, tries: int) -> Reference:
    """The steadiest of a few: nudges stay within half of what is allowed."""
    found = []
    for seed in SEEDS[:tries]:
        found.append(_nudged(subject, steps, seed, {"variables": variables / 2.0, "figures": figures / 2.0}))
        if found[-1].steady == steps:
            break
    return max(found, key=lambda run: run.steady)


def reference(subject: Subject, microbatches: int, steps: int, seed: int) -> Sequence[Outcome]:
    """One replica with so many microbatches, after each step."""
    run = Run(subject.make(on_virtual_cpus(1)), subject.batch, microbatches=microbatches, seed=seed)
    return [run.train(1, first=i) for i in range(steps)]


def _nudged(subject: Subject, steps: int, seed: int, allowed: dict[str, float]) -> Reference:
    pieces = subject.make(on_virtual_cpus(1))
    run, own = Run(pieces, subject.batch, seed=seed), {id(v) for v in pieces.task.parameters().values()}
    start = {path: variable.numpy() for path, variable in run.variables.items()}
    outcomes, steady = [run.train(1, first=i) for i in range(steps)], steps
    for nudge in range(NUDGES):
        random = np.random.RandomState(nudge)
        for path, variable in run.variables.items():
            value = start[path]
            if id(variable) in own:
                value = np.nextafter(value, random.choice([-np.inf, np.inf], value.shape).astype(value.dtype))
            variable.assign(value)
        for i in range(steady):
            found = run.train(1, first=i)
            for kind, largest in allowed.items():
                if differences(getattr(outcomes[i], kind), getattr(found, kind))[0].size > largest:
                    steady = min(steady, i)
    return Reference(seed, outcomes, steady)
