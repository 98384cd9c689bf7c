"""Trains one subject in many combinations of replicas and microbatches, and sets the outcomes side by side."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from core.distribution.ledger import GRADIENTS
from core.task import Update
from core.testing import Outcome, Pieces, on_virtual_cpus, train
from core.testing.invariance import differences, mixing
from core.testing.replicas import Values
from tests.invariance.subjects import Subject

COUNTS = (1, 2, 4)
COMBINATIONS = [(replicas, microbatches) for microbatches in COUNTS for replicas in COUNTS]
VARIABLES, FIGURES = 1e-5, 1e-6
SEED = 7


@dataclasses.dataclass
class Worst:
    """The largest difference so far, of how much is allowed."""

    allowed: float
    size: float = 0.0
    name: str = "none"
    where: str = ""

    def add(self, found: Values, expected: Values, where: str) -> float:
        """Looks at one more outcome; returns its own largest difference."""
        largest = differences(expected, found)[0]
        if largest.size > self.size:
            self.size, self.name, self.where = largest.size, largest.name, where
        return largest.size

    def __str__(self) -> str:
        return f"{self.size:.1e} (`{self.name}`, {self.where})" if self.size else "0"


@dataclasses.dataclass
class Row:
    """What was found out about one subject."""

    name: str
    variables: Worst = dataclasses.field(default_factory=lambda: Worst(VARIABLES))
    figures: Worst = dataclasses.field(default_factory=lambda: Worst(FIGURES))
    reductions: dict[str, set[int]] = dataclasses.field(default_factory=dict)  # of gradients, by update
    problems: list[str] = dataclasses.field(default_factory=list)


def measure(
    subject: Subject,
    combinations: Sequence[tuple[int, int]] = COMBINATIONS,
    *,
    steps: int = 20,
    report: Callable[[str], None] = lambda line: None,
) -> Row:
    """Compares each combination with one replica: with its own microbatches where rows are mixed, else with one."""
    row, references = Row(subject.name), dict[int, Outcome]()
    for replicas, microbatches in sorted(combinations, key=lambda c: (c[1], c[0])):
        began = time.perf_counter()
        where = f"{replicas} x {microbatches}"
        pieces = subject.make(on_virtual_cpus(replicas))
        found = train(pieces, subject.batch, microbatches=microbatches, steps=steps, seed=SEED)
        by = microbatches if mixing(pieces) else 1
        if by not in references:
            references[by] = found if (replicas, microbatches) == (1, by) else _reference(subject, by, steps)
        variables = row.variables.add(found.variables, references[by].variables, where)
        figures = row.figures.add(found.figures, references[by].figures, where)
        counts = _count_reductions(row, pieces, found, where) if replicas > 1 else "none"
        report(
            f"{subject.name}: {where}: variables {variables:.1e}, figures {figures:.1e}, reductions {counts} "
            f"({time.perf_counter() - began:.1f} s)"
        )
    for what, worst in (("variables", row.variables), ("figures", row.figures)):
        if worst.size > worst.allowed:
            row.problems.append(f"{what} differ by {worst}, over {worst.allowed:.0e}")
    if row.problems:
        row.problems.append(
            f"for comparison: one last bit more or less in each first weight, on one replica, makes a difference of "
            f"{_sensitivity(subject, steps):.1e} in the variables"
        )
    return row


def _reference(subject: Subject, microbatches: int, steps: int) -> Outcome:
    pieces = subject.make(on_virtual_cpus(1))
    return train(pieces, subject.batch, microbatches=microbatches, steps=steps, seed=SEED)


def _sensitivity(subject: Subject, steps: int) -> float:
    """What rounding alone can come to: tells a task that magnifies it from a difference of the replicas' making."""
    reference, largest = _reference(subject, 1, steps), 0.0
    for seed in range(3):
        pieces, random = subject.make(on_virtual_cpus(1)), np.random.RandomState(seed)
        for variable in pieces.task.parameters().values():
            value = variable.numpy()
            there = np.where(random.rand(*value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
            variable.assign(np.nextafter(value, there))
        found = train(pieces, subject.batch, steps=steps, seed=SEED)
        largest = max(largest, differences(reference.variables, found.variables)[0].size)
    return largest


def _count_reductions(row: Row, pieces: Pieces, found: Outcome, where: str) -> str:
    """One for each update, but none where what it trains lives on one device."""
    counts = {}
    for phase in pieces.phases:
        if isinstance(phase, Update):
            made = sum((entry.phase, entry.what) == (phase.name, GRADIENTS) for entry in found.collectives)
            expected = 0 if any(id(v) in pieces.alone for v in phase.variables().values()) else 1
            row.reductions.setdefault(phase.name, set()).add(made)
            counts[phase.name] = made
            if made != expected:
                row.problems.append(f"`{phase.name}` reduces gradients {made} times on {where}, not {expected}")
    return ", ".join(f"{name} {made}" for name, made in counts.items())
