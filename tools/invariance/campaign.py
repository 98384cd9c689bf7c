"""Trains one subject in many combinations of replicas and microbatches, and on meshes; compares the results."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from core.distribution.ledger import GRADIENTS
from core.engine import Assembly
from core.errors import ConfigurationError
from core.task import Update
from core.testing import Run, on_virtual_cpus, on_virtual_mesh
from core.testing.invariance import differences, mixing
from core.testing.replicas import Values
from tools.invariance.rounding import SEEDS, Edges, Reference, reference, shows, steady_run
from tools.invariance.subjects import REFUSED_ON_MESHES, Subject

COUNTS = (1, 2, 4)
COMBINATIONS = [(replicas, microbatches) for microbatches in COUNTS for replicas in COUNTS]
MESHES = [(1, 2), (2, 1), (2, 2), (4, 2)]
VARIABLES, FIGURES = 1e-5, 1e-6


@dataclasses.dataclass
class Worst:
    """The largest difference so far, relative to its tolerance."""

    allowed: float
    size: float = 0.0
    name: str = "none"
    where: str = ""

    def add(self, found: Values, expected: Values, where: str) -> float:
        """Adds one result; returns its largest difference."""
        largest = differences(expected, found)[0]
        if largest.size > self.size:
            self.size, self.name, self.where = largest.size, largest.name, where
        return largest.size

    def __str__(self) -> str:
        return f"{self.size:.1e} (`{self.name}`, {self.where})" if self.size else "0"


@dataclasses.dataclass
class Row:
    """Results of one subject."""

    name: str
    steps: int
    in_a_row: int = 0  # steps; each later one starts from one replica's variables
    at_edges: list[str] = dataclasses.field(default_factory=list)  # steps that rounding alone changes as much
    variables: Worst = dataclasses.field(default_factory=lambda: Worst(VARIABLES))
    figures: Worst = dataclasses.field(default_factory=lambda: Worst(FIGURES))
    reductions: dict[str, set[int]] = dataclasses.field(default_factory=dict)  # gradient reductions, by update
    remarks: list[str] = dataclasses.field(default_factory=list)  # what a run would report about the step functions
    meshes: list[str] = dataclasses.field(default_factory=list)  # meshes with the same results
    refused: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


def measure(
    subject: Subject,
    combinations: Sequence[tuple[int, int]] = COMBINATIONS,
    meshes: Sequence[tuple[int, int]] = (),
    *,
    steps: int = 20,
    tries: int = len(SEEDS),
    report: Callable[[str], None] = lambda line: None,
) -> Row:
    """Compares each combination with one replica: with the same microbatches if the task mixes rows, else with one.

    A mesh is one replica, whatever the task mixes. A mesh that refuses the task is a problem unless it is expected.
    """
    whole = steady_run(subject, steps, variables=VARIABLES, figures=FIGURES, tries=tries)
    row, references = Row(subject.name, steps, whole.steady), {1: whole}
    for replicas, microbatches in sorted(combinations, key=lambda c: (c[1], c[0])):
        began, where = time.perf_counter(), f"{replicas} x {microbatches}"
        assembly = subject.make(on_virtual_cpus(replicas))
        run = Run(assembly, subject.batch, microbatches=microbatches, seed=whole.seed)
        row.remarks = run.step.remarks
        by = microbatches if mixing(assembly) else 1
        if by not in references:
            # Other microbatches of mixed rows are another run, which may meet other edges.
            references[by] = reference(subject, by, steps, whole.seed, variables=VARIABLES, figures=FIGURES)
            row.in_a_row = min(row.in_a_row, references[by].steady)
        edges = functools.partial(Edges, subject, by, whole.seed)
        variables, figures = _compare(run, references[by], row, where, edges)
        counts = _count_reductions(row, assembly, run, where) if replicas > 1 else "none"
        report(
            f"{subject.name}: {where}: variables {variables:.1e}, figures {figures:.1e}, reductions {counts} "
            f"({time.perf_counter() - began:.1f} s)"
        )
    for sizes in meshes:
        _measure_mesh(subject, sizes, whole, row, report)
    for what, worst in (("variables", row.variables), ("figures", row.figures)):
        if worst.size > worst.allowed:
            row.problems.append(f"{what} differ by {worst}, over {worst.allowed:.0e}")
    return row


def _measure_mesh(
    subject: Subject, sizes: tuple[int, int], whole: Reference, row: Row, report: Callable[[str], None]
) -> None:
    began, name = time.perf_counter(), "{}x{}".format(*sizes)
    try:
        run = Run(subject.make(on_virtual_mesh(*sizes, subject.layouts)), subject.batch, seed=whole.seed)
        edges = functools.partial(Edges, subject, 1, whole.seed)
        variables, figures = _compare(run, whole, row, f"mesh {name}", edges)
    except ConfigurationError as error:
        row.refused.append(name)
        if subject.name not in REFUSED_ON_MESHES:
            row.problems.append(f"is refused on a mesh of {name}: {error}")
        report(f"{subject.name}: mesh {name}: refused: {error}")
        return
    row.meshes.append(name)
    seconds = time.perf_counter() - began
    report(f"{subject.name}: mesh {name}: variables {variables:.1e}, figures {figures:.1e} ({seconds:.1f} s)")


def _compare(run: Run, reference: Reference, row: Row, where: str, edges: Callable[[], Edges]) -> tuple[float, float]:
    """Returns the largest differences in variables and metrics after any step that isn't at an edge."""
    variables = figures = 0.0
    allowed = {"variables": row.variables.allowed, "figures": row.figures.allowed}
    expected = reference.outcomes
    for i, outcome in enumerate(expected):
        found = run.train(1, first=i)
        if i and i >= reference.steady and shows(outcome, found, allowed) and edges().at(i, expected, found, allowed):
            row.at_edges.append(f"step {i + 1} on {where}")
        else:
            variables = max(variables, row.variables.add(found.variables, outcome.variables, where))
            figures = max(figures, row.figures.add(found.figures, outcome.figures, where))
        if i + 1 >= reference.steady:
            for path, variable in run.variables.items():
                variable.assign(tf.cast(outcome.variables[path], variable.dtype))
    return variables, figures


def _count_reductions(row: Row, assembly: Assembly, run: Run, where: str) -> str:
    """Counts one per update, but none if an update trains a one-device network."""
    counts = {}
    for phase in assembly.phases:
        if isinstance(phase, Update):
            made = sum((entry.phase, entry.what) == (phase.name, GRADIENTS) for entry in run.collectives)
            expected = 0 if any(id(v) in assembly.one_device_ids for v in phase.variables().values()) else 1
            row.reductions.setdefault(phase.name, set()).add(made)
            counts[phase.name] = made
            if made != expected:
                row.problems.append(f"`{phase.name}` reduces gradients {made} times on {where}, not {expected}")
    return ", ".join(f"{name} {made}" for name, made in counts.items())
