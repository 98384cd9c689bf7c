"""Checks that results don't depend on the number of replicas or microbatches, or on a mesh.

>>> import tensorflow as tf
>>> from core import layers
>>> from core.optimizers import adamw
>>> from core.task import Loss, Task, Update
>>> class Line(Task):
...     def __init__(self, *, rng):
...         super().__init__()
...         self.net = layers.Linear(3, 1, rng=rng)
...
...     def phases(self):
...         return [Update("net", loss=self.loss, trains=self.net, optimizer=adamw(0.01))]
...
...     def loss(self, batch, rng):
...         return Loss(tf.square(self.net(batch["x"])[:, 0] - batch["y"]))
>>> batch = {"x": tf.ones([8, 3]), "y": tf.zeros([8])}
>>> assert_replica_invariant(Line, batch, replicas=(1, 2), steps=2)
>>> assert_accumulation_invariant(Line, batch, microbatches=(1, 4), steps=2)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from core.engine import Assembly
from core.task import Batch
from core.testing.batch import relative
from core.testing.replicas import Factory, Outcome, Run, Values, assemble, on_virtual_cpus, on_virtual_mesh

MESH_HINTS = (
    "Usual reasons: numbers that aren't drawn from the step's `rng`; a mean over the batch inside the loss "
    "(return one value per example, and a `weight`); an operation that DTensor silently gets wrong: leave out "
    "parts of the loss until both agree, and say which it was."
)
FIGURES = 0.1  # of the tolerance for variables: losses and metrics haven't gone through an optimizer's square root

REPLICA_HINTS = (
    "Usual reasons: per-example randomness that isn't drawn from `rng.rows` (`rng.rows.normal(*x.shape)`, not "
    "`rng.normal(x.shape)`); a layer or loss that looks at one replica's rows alone (`BatchNorm(sync=True)`, "
    "`all_rows(x)` from `core.task`, with `mixes_rows=True` on the phase); a mean over the batch inside the loss "
    "(return one value per example, and a `weight`)."
)
MICROBATCH_HINTS = (
    "Usual reasons: per-example randomness that isn't drawn from `rng.rows` (`rng.rows.normal(*x.shape)`, not "
    "`rng.normal(x.shape)`); a mean over the batch inside the loss (return one value per example, and a `weight`); a "
    "phase that looks at all rows of a batch and doesn't say `mixes_rows=True`."
)
ROUNDING = (
    "Where the gradient of a parameter is zero but for rounding (a bias ahead of a normalisation), Adam and its like "
    "make steps of that rounding: leave the parameter out, or compare with `sgd`."
)


def assert_replica_invariant(
    task: Factory,
    batch: Batch,
    replicas: Sequence[int] = (1, 2, 4),
    *,
    steps: int = 20,
    microbatches: int = 1,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """Asserts that training `task(rng=...)` gives the same variables, losses and metrics on any number of `replicas`.

    `batch` is the whole batch, `{name: [rows, ...]}`. Variables may differ by `tolerance`, relative to max(1, |value|),
    and metrics by a tenth of it. The replicas of one run must be equal bit for bit.
    """
    _assert_counts("replicas", replicas, steps)
    runs = [_trained(task, batch, count, microbatches, steps=steps, seed=seed) for count in dict.fromkeys(replicas)]
    assert_same(runs, tolerance, REPLICA_HINTS)


def assert_accumulation_invariant(
    task: Factory,
    batch: Batch,
    microbatches: Sequence[int] = (1, 2, 4),
    *,
    replicas: int = 1,
    steps: int = 20,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """Asserts that training `task(rng=...)` gives the same results for any number of `microbatches`."""
    _assert_counts("microbatches", microbatches, steps)
    runs = [
        _trained(task, batch, replicas, count, steps=steps, seed=seed, check=_assert_rows_apart)
        for count in dict.fromkeys(microbatches)
    ]
    assert_same(runs, tolerance, MICROBATCH_HINTS)


class Difference(NamedTuple):
    """The largest difference between two results of one variable or metric, relative to max(1, |value|)."""

    name: str
    size: float
    one: float
    other: float
    place: int  # in the flattened value; for a metric, the step


def differences(one: Values, other: Values) -> list[Difference]:
    """Returns each variable's or metric's largest `Difference`, in descending order."""
    return sorted((_difference(name, x, other[name]) for name, x in one.items()), key=lambda d: -d.size)


def mixing(assembly: Assembly) -> list[str]:
    """Returns the names of the phases that mix rows. Their results depend on the number of microbatches."""
    return [phase.name for phase in assembly.phases if phase.mixes_rows and phase.microbatches is None]


def _trained(
    factory: Factory,
    batch: Batch,
    replicas: int,
    microbatches: int,
    *,
    steps: int,
    seed: int,
    check: Callable[[Assembly], None] | None = None,
) -> Outcome:
    assembly = assemble(factory, on_virtual_cpus(replicas), seed=seed)
    if check:
        check(assembly)
    return Run(assembly, batch, microbatches=microbatches, seed=seed).train(steps)


def assert_same(runs: Sequence[Outcome], tolerance: float, hints: str) -> None:
    """Asserts that the results of each run equal those of the first run, up to `tolerance`."""
    first = runs[0]
    for run in runs[1:]:
        variables = [d for d in differences(first.variables, run.variables) if d.size > tolerance]
        figures = [d for d in differences(first.figures, run.figures) if d.size > tolerance * FIGURES]
        if not variables and not figures:
            continue
        worst = (variables or figures)[0]
        allowed = tolerance if variables else tolerance * FIGURES
        when = f"after {run.steps} steps" if variables else f"in step {worst.place}"
        others = len(variables or figures) - 1
        raise AssertionError(
            f"`{worst.name}` {when} is {worst.one:.6g} on {first.where} and "
            f"{worst.other:.6g} on {run.where}: a difference of {worst.size:.2g}, where "
            f"{allowed:.0e} may be rounding"
            + (f" ({others} other{'s differ' if others > 1 else ' differs'} as well)" if others else "")
            + f". {_began(first, run, tolerance * FIGURES)}{hints} {ROUNDING}"
        )


def _began(first: Outcome, run: Outcome, allowed: float) -> str:
    """Describes for an error the first step with a difference, and whether it is in forward passes or updates."""
    apart = {name: relative(x, run.figures[name]) > allowed for name, x in first.figures.items()}
    steps = {name: int(np.argmax(found)) for name, found in apart.items() if found.any()}
    if not steps:
        return "No loss or metric shows it. "
    name = min(steps, key=lambda key: steps[key])
    cause = "so the forward passes differ" if steps[name] == 0 else "while those before agree: updates differ"
    return f"`{name}` differs from step {steps[name]} on, {cause}. "


def _difference(name: str, one: np.ndarray, other: np.ndarray) -> Difference:
    if not one.size:
        return Difference(name, 0.0, 0.0, 0.0, 0)
    distances = relative(one, other)
    place = int(np.argmax(distances))
    return Difference(name, float(distances.flat[place]), float(one.flat[place]), float(other.flat[place]), place)


def _assert_counts(name: str, counts: Sequence[int], steps: int) -> None:
    counted = {count for count in counts if isinstance(count, int) and count >= 1}
    assert 2 <= len(counted) == len({*counts}), (
        f"`{name}` is {counts!r}; name at least two whole numbers to compare, as in `(1, 2, 4)`."
    )
    assert steps >= 1, f"`steps` is {steps}; it takes one to see a difference, and some more to see it grow."


def _assert_rows_apart(assembly: Assembly) -> None:
    names = [f"`{name}`" for name in mixing(assembly)]
    assert not names, (
        f"phase {' and '.join(names)} mixes rows (`mixes_rows=True`): its results depend on which rows share a "
        "microbatch, so they change with `microbatches`. Use `assert_replica_invariant` at each "
        "number of microbatches, or let the phase see the whole batch at once (`microbatches=1` on the phase)."
    )


def assert_mesh_invariant(
    task: Factory,
    batch: Batch,
    meshes: Sequence[tuple[int, int]] = ((1, 2), (2, 1), (2, 2)),
    *,
    layouts: Sequence[tuple[str, str]] = (),
    steps: int = 20,
    microbatches: int = 1,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """Asserts that training `task(rng=...)` on each mesh `(batch, model)` gives the results of one device.

    `layouts` shard variables, as in `mesh.layouts`. Without `layouts`, only rows are sharded. Tolerances are those of
    `assert_replica_invariant`. Code that can't run on a mesh raises an error that names the code.
    """
    strategies = [on_virtual_cpus(1), *(on_virtual_mesh(*sizes, layouts) for sizes in meshes)]
    assemblies = [assemble(task, strategy, seed=seed) for strategy in strategies]
    runs = [Run(assembly, batch, microbatches=microbatches, seed=seed).train(steps) for assembly in assemblies]
    assert_same(runs, tolerance, MESH_HINTS)
