"""Does a task train to the same numbers where it is cut over a mesh of devices?"""

from collections.abc import Sequence

from core.task import Batch
from core.testing.invariance import assert_same
from core.testing.replicas import Factory, Run, assemble, on_virtual_cpus, on_virtual_mesh

HINTS = (
    "Usual reasons: numbers that are drawn from anywhere but the step's `rng`; a mean over the batch inside the loss "
    "(return one value per example, and a `weight`); an operation that DTensor gets wrong without a word: leave out "
    "parts of the loss until both agree, and say which it was."
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
    """Asserts that `task(rng=...)` trains on each mesh, `(batch, model)`, to what it does on one device.

    `layouts` are those of `mesh.layouts`; without them only rows are cut. Tolerances are those of
    `assert_replica_invariant`. What can't be on a mesh is an error that names it.
    """
    strategies = [on_virtual_cpus(1), *(on_virtual_mesh(*sizes, layouts) for sizes in meshes)]
    assemblies = [assemble(task, strategy, seed=seed) for strategy in strategies]
    runs = [Run(assembly, batch, microbatches=microbatches, seed=seed).train(steps) for assembly in assemblies]
    assert_same(runs, tolerance, HINTS)
