"""How far a task amplifies rounding, on one replica alone.

A ReLU, an absolute value or a threshold may meet a number that is zero except for rounding. Then the last bit decides
the gradient's direction, and replicas, which add in another order, may rightly differ. So the campaign first looks for
a run without such edges: it changes the last bits of the initial weights on one replica, and the change must not grow.
Replicas are compared through this run's steps; each later step starts from one replica's variables. If such a step
differs, the campaign repeats it on one replica with changed last bits. If that changes the step as much, the step is at
an edge. Otherwise the step is wrong.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from core.engine import Assembly
from core.testing import Outcome, Run, on_virtual_cpus
from core.testing.invariance import differences
from core.testing.replicas import Values
from tools.invariance.subjects import Subject

NUDGES, NUDGES_OF_A_STEP = 4, 64
SEEDS = (9, 10, 7, 8)


class Reference(NamedTuple):
    """A run on one replica."""

    seed: int
    outcomes: Sequence[Outcome]  # after each step
    steady: int  # steps that rounding doesn't change


def steady_run(subject: Subject, steps: int, *, variables: float, figures: float, tries: int) -> Reference:
    """Tries a few runs, and returns the one with the longest steady beginning."""
    found = []
    for seed in SEEDS[:tries]:
        found.append(reference(subject, 1, steps, seed, variables=variables, figures=figures))
        if found[-1].steady == steps:
            break
    return max(found, key=lambda run: run.steady)


class Edges:
    """Tells whether a step is at an edge."""

    def __init__(self, subject: Subject, microbatches: int, seed: int):
        self._assembly = subject.make(on_virtual_cpus(1))
        self._run = Run(self._assembly, subject.batch, microbatches=microbatches, seed=seed)

    def at(self, i: int, outcomes: Sequence[Outcome], found: Outcome, allowed: dict[str, float]) -> bool:
        """Tells whether rounding before step `i` of the reference changes it by at least half of `found`."""
        far = {kind: max(largest, _distance(outcomes[i], found, kind) / 2.0) for kind, largest in allowed.items()}
        beyond = [kind for kind, largest in allowed.items() if _distance(outcomes[i], found, kind) > largest]
        for nudge in range(NUDGES_OF_A_STEP):
            _nudge(self._assembly, self._run, outcomes[i - 1].variables, nudge)
            nudged = self._run.train(1, first=i)
            if all(_distance(outcomes[i], nudged, kind) > far[kind] for kind in beyond):
                return True
        return False


def reference(
    subject: Subject, microbatches: int, steps: int, seed: int, *, variables: float, figures: float
) -> Reference:
    """Runs one replica with so many microbatches; it is steady while nudges stay within half the tolerance."""
    allowed = {"variables": variables / 2.0, "figures": figures / 2.0}
    assembly = subject.make(on_virtual_cpus(1))
    run = Run(assembly, subject.batch, microbatches=microbatches, seed=seed)
    start = {path: variable.numpy() for path, variable in run.variables.items()}
    outcomes, steady = [run.train(1, first=i) for i in range(steps)], steps
    for nudge in range(NUDGES):
        _nudge(assembly, run, start, nudge)
        for i in range(steady):
            if shows(outcomes[i], run.train(1, first=i), allowed):
                steady = min(steady, i)
    return Reference(seed, outcomes, steady)


def _nudge(assembly: Assembly, run: Run, values: Values, nudge: int) -> None:
    """Sets all variables to these values, with changed last bits in the parameters."""
    random, own = np.random.RandomState(nudge), {id(v) for v in assembly.task.parameters().values()}
    for path, variable in run.variables.items():
        value = np.asarray(values[path]).astype(variable.dtype.as_numpy_dtype)
        if id(variable) in own:
            value = np.nextafter(value, random.choice([-np.inf, np.inf], value.shape).astype(value.dtype))
        variable.assign(value)


def shows(expected: Outcome, found: Outcome, allowed: dict[str, float]) -> bool:
    """Tells whether two results differ by more than the tolerance."""
    return any(_distance(expected, found, kind) > largest for kind, largest in allowed.items())


def _distance(expected: Outcome, found: Outcome, kind: str) -> float:
    """Returns the largest difference of `variables` or `figures`."""
    return differences(getattr(expected, kind), getattr(found, kind))[0].size
