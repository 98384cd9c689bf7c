"""Checks how many collectives (communication between replicas) a step makes.

assert_collectives(make_task, batch, {"net": {"gradients": 1}})                   # any plain update
assert_collectives(make_task, batch, {"net": {"gradients": 1, "statistics": 2}})  # with one synchronised layer
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from core.arguments import listed
from core.distribution.ledger import FIGURES, GRADIENTS, PRECONDITIONERS, ROWS, STATISTICS, VALUES, Collective
from core.errors import did_you_mean
from core.task import Batch
from core.testing.replicas import Factory, Run, assemble, describe, on_virtual_cpus

KINDS = {
    GRADIENTS: "An `Update` sums its gradients and all its figures at once, however many microbatches there are.",
    STATISTICS: "A synchronised layer (`sync=True`) sums once forward and once backward.",
    ROWS: "`all_rows` gathers once forward and, for a gradient, once backward.",
    VALUES: "Values move between phases of different `placement`.",
    PRECONDITIONERS: "A rule with `sharded=True` gathers what each replica computed.",
    FIGURES: "An `Update` with `through` sums its figures by themselves.",
}


def assert_collectives(
    task: Factory, batch: Batch, expected: Mapping[str, Mapping[str, int]], *, replicas: int = 2, microbatches: int = 1
) -> None:
    """Asserts that one step of `task(rng=...)` makes exactly the collectives `{phase: {kind: number}}`.

    The step is traced, not run. If a phase mixes rows, its layers' collectives count for one microbatch only.
    """
    assert replicas >= 2, f"`replicas` is {replicas}; a single one exchanges nothing: give 2 or more."
    assembly = assemble(task, on_virtual_cpus(replicas))
    phases = [phase.name for phase in assembly.phases]
    for phase, kinds in expected.items():
        assert phase in phases, (
            f"`expected` names the phase `{phase}`; the task has {listed(phases)}.{did_you_mean(phase, phases)}"
        )
        for kind in kinds:
            assert kind in KINDS, (
                f"`expected` names the kind `{kind}`; there are {listed(list(KINDS))}.{did_you_mean(kind, KINDS)}"
            )
    made = Run(assembly, batch, microbatches=microbatches).collectives
    found = Counter((entry.phase, entry.what) for entry in made)
    wanted = Counter({(phase, kind): count for phase, kinds in expected.items() for kind, count in kinds.items()})
    wrong = [key for key in dict.fromkeys([*wanted, *found]) if wanted[key] != found[key]]
    assert not wrong, (
        f"one step on {describe(replicas, microbatches)} makes "
        + "; ".join(
            f"{found[key]} of `{key[1]}` in phase `{key[0]}`{_sizes(made, *key)}, where {wanted[key]} "
            f"{'is' if wanted[key] == 1 else 'are'} expected"
            for key in wrong
        )
        + f". {' '.join(KINDS[kind] for kind in dict.fromkeys(kind for _, kind in wrong))} Change the phase, or "
        "`expected` if this is how it is meant."
    )


def _sizes(made: Sequence[Collective], phase: str, kind: str) -> str:
    sizes = [f"{entry.dtype}, {entry.bytes:,} bytes" for entry in made if (entry.phase, entry.what) == (phase, kind)]
    return f" ({'; '.join(sizes)})" if sizes else ""
