"""`python -m tools.conformance` writes `docs/parts.md`: each part, its paper, its peer, the difference seen."""

from pathlib import Path

from core import layers, losses, metrics
from core.optimizers import optimizer
from tests.conformance import optimizer_battery
from tests.conformance.battery import table
from tests.conformance.layer_rows import ROWS_OF_LAYERS
from tests.conformance.loss_rows import ROWS_OF_LOSSES
from tests.conformance.metric_rows import ROWS_OF_METRICS
from tests.conformance.narrow_rows import NARROW
from tests.conformance.optimizer_rows import OPTIMIZERS
from tests.conformance.schedule_rows import SCHEDULES
from tests.conformance.transform_rows import TRANSFORMS
from tools.conformance.calls import calls
from tools.conformance.notes import NOTES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parts.md"

HEAD = """# Layers, losses, metrics, optimizers, schedules

`python -m tools.conformance` generates this page and computes each value. *Difference* is the largest difference
between a part and its peer, relative to the largest value. For optimizers it is relative to the largest weight after
50 steps. Tests check each part: gradients, graph, XLA, dtypes, checkpoints, SavedModel, retracing, unknown batch
sizes. They fail for a public part without a row.

Import parts from `core.layers`, `core.losses`, `core.metrics` or `core.optimizers`. Layers take explicit sizes and an
`rng`, as in [your own architecture](your-own-architecture.md). Signatures follow the tables, and those of optimizers
are in [every binding](bindings.md). A note states a difference to the paper or to other libraries.
"""

OPTIMIZERS_HEAD = """
An optimizer is a pure `Transform`, chained with others: `chain(clip_by_global_norm(1.0), adamw(1e-3))`. *Needs* lists
its inputs besides gradients. Masks and groups use shell wildcards on a parameter's path or its end: `b` is every
parameter named `b`, `encoder/*` everything below an `encoder`. In gin files, write `@schedules.constant()`, because
`constant` is also a name of gin itself. `slots="bfloat16"` or `"int8"` makes an optimizer's
[state smaller](fit-into-memory.md#smaller-optimizer-state); the peers keep float32.

A gin file binds arguments by the name of the optimizer, and takes optimizers and learning-rate schedules as
references:

<!-- file: rules.gin -->
```
include "configs/digits_mlp.gin"
MlpClassifier.optimizer = @chain()
chain.transforms = [@clip_by_global_norm(), @adamw()]
clip_by_global_norm.max_norm = 1.0
adamw.no_decay = ["b"]
```

<!-- run -->
```sh
python -m trainers.main --gin_file=rules.gin --gin_param='steps = 200'
```

Any number of an optimizer may be a schedule, as in `adamw.beta_1 = @linear()`. Such an optimizer uses no fused kernel.

On replicas, `sharded = True` of `muon`, `soap` and `psgd_kron` splits the costly part of an update: each replica
computes a share, and a collective gathers the results. On two replicas that share two cores, a step of an MLP took 0.54
of its time with `muon`, 0.66 with `psgd_kron` and 0.90 with `soap` (`python -m benchmarks.sharing`).

`sophia.estimator = "gauss_newton_bartlett"` needs `Update(sampled_loss=...)`, a loss on labels drawn from the model.
The shipped classifiers and language models have one.

Newer optimizers, for a gradient g, or G of a matrix [m, n], parameters θ and rate η. The state is in values; Adam's is
2mn:

| part | direction, before rate and decay | state of [m, n] | gin |
| --- | --- | --- | --- |
| adan | (m̂ + β2 v̂) / (√n̂ + ε) | 4mn | `@adan()` |
| adabelief | m̂ / (√ŝ + ε) | 2mn | `@adabelief()` |
| ademamix | (m̂ + α s) / (√v̂ + ε) | 3mn | `@ademamix()` |
| mars | that of a rule, for g + γ β1 / (1 - β1) (g - last g) | mn more | `chain.transforms = [@mars(), @adamw()]` |
| cautious | u φ / mean(φ), where φ is 1 if u lowers the loss | that of `inner` | `cautious.inner = @adamw()` |
| cautious_decay | u, and decay of θ where u moves θ to zero | that of `inner` | `cautious_decay.inner = @adam()` |
| muon | the orthogonal factor U Vᵀ of the momentum | mn | `@muon()` |
| muon: NorMuon | the same, with outputs of similar size | mn + n | `muon.neuron_beta = 0.95` |
| soap | QL (QLᵀ M̂ QR / (√V̂ + ε)) QRᵀ | 2mn + 2m² + 2n² | `@soap()` |
| psgd_kron | QᵀQ m̂ | mn + m² + n² | `@psgd_kron()` |
"""


def page() -> str:
    """Returns the whole page."""
    sections = [HEAD]
    for title, package, rows in (
        ("Layers", layers, ROWS_OF_LAYERS),
        ("Losses", losses, ROWS_OF_LOSSES),
        ("Metrics", metrics, ROWS_OF_METRICS),
    ):
        columns: tuple[str, ...] = ("part", "paper", "peer", "difference", "note")
        lines = [
            _line(part, paper, peer, f"{largest:.1e}", NOTES.get(part, ""))
            for part, paper, peer, largest in table(rows)
        ]
        sections.append(f"\n## {title}\n\n{_line(*columns)}{_rule(len(columns))}{''.join(lines)}")
        sections.append(calls(package, (row.part for row in rows)))
    for title, head, rows in (
        ("Optimizers", OPTIMIZERS_HEAD, (*OPTIMIZERS, *NARROW)),
        ("Transforms", "", TRANSFORMS),
        ("Schedules", "", SCHEDULES),
    ):
        columns = ("part", "paper", "needs", "peer", "difference", "note")
        lines = [_line(*(found[column] for column in columns)) for found in optimizer_battery.table(rows)]
        sections.append(f"\n## {title}\n{head}\n{_line(*columns)}{_rule(len(columns))}{''.join(lines)}")
    return "".join(sections)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |\n"


def _rule(columns: int) -> str:
    return "|" + " --- |" * columns + "\n"


if __name__ == "__main__":
    optimizer.KERNELS_FROM = 0  # the inputs are small, and their kernels must be used (as in `conftest.py`)
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}")
