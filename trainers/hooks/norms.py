"""Looking at how large the gradients, weights and updates of each module are, while it trains.

In a gin file:

    Trainer.hooks = [@Norms()]
    Norms.every = 500
"""

from collections.abc import Iterator, Mapping
from typing import Any

import gin

from core.engine import Watch
from core.errors import ConfigurationError
from trainers.hooks.base import Hook, Run

THROWN_ABOUT = 0.3  # of a weight: what changes by more forgets what it was
ROUNDED_AWAY = 2.0**-24  # of a weight: a smaller change leaves its float32 as it is


@gin.configurable
class Norms(Hook):
    """Writes the norms of each module's gradients, weights and updates, as the step that follows has them.

    They go to `metrics.jsonl` and TensorBoard as figures of `norms`: `gradient/PATH`, `weight/PATH`, `update/PATH`, of
    several updates after the phase's name. Each phase is measured from the weights as they are, also one that isn't
    due. It warns of what it has seen twice in a row: updates that throw weights about, or are too small to change them.
    """

    def __init__(self, every: int | None = None):
        super().__init__(every)
        self._suspects: list[str] = []
        self._watch: Watch | None = None

    def check(self, run: Run) -> None:
        """Makes what looks at the step; refuses steps that not all devices take together."""
        backend, experiment, batches = run.train_step.backend, run.experiment, run.input
        if not backend.steps_together:
            who = f"{backend.how} {'replicas' if backend.steps_here else 'workers'} take"
            raise ConfigurationError(
                f"`Trainer.hooks` looks at the step that comes next, as all devices take it together, but {who} steps "
                "of their own: leave `Norms` out."
            )
        self._watch = Watch(
            experiment.assembly,
            batches.batch_spec,
            batches.chunk_spec,
            seed=experiment.seed,
            steps=run.steps,
            decode=batches.decode,
        )

    def __call__(self, run: Run) -> None:
        assert self._watch, "`check` comes first"
        first = run.step - run.step % run.input.chunk_steps
        norms = self._watch.norms(run.next_chunk(), first=first, step=run.step)  # on several workers, of all together
        run.telemetry.write(run.step, "norms", norms, shown=False)
        suspects = dict(unlikely(norms))
        for name in self._suspects:
            if name in suspects:
                run.telemetry.warn_once(suspects[name])
        self._suspects = list(suspects)

    def state(self) -> dict[str, Any]:
        return {"suspects": self._suspects}

    def load(self, state: Mapping[str, Any]) -> None:
        self._suspects = list(state["suspects"])


def unlikely(norms: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yields the modules that learn nothing, or whose weights are thrown about, each with what to say of it."""
    for name, weight in norms.items():
        phase, kind, module = _parts(name)
        if kind != "weight" or weight == 0.0:
            continue
        gradient, update = norms[f"{phase}gradient/{module}"], norms[f"{phase}update/{module}"]
        where = f"`{phase}{module}`"
        if update > THROWN_ABOUT * weight:
            yield (
                f"{where} explodes",
                f"updates of {where} explode: one is {update / weight:.0%} of its weights. A lower learning rate, a "
                "warm-up or `clip_by_global_norm` usually helps.",
            )
        elif gradient == 0.0:
            yield (
                f"{where} is dead",
                f"the gradients of {where} are zero: nothing that it does reaches the loss. Units that are never "
                "active, or a loss that has reached its end, do that.",
            )
        elif 0.0 < update < ROUNDED_AWAY * weight:
            yield (
                f"{where} vanishes",
                f"updates of {where} are so small (a norm of {update:.3g}, beside weights of {weight:.3g}) that "
                "float32 rounds them away: a higher learning rate, or normalisation before it, usually helps.",
            )


def _parts(name: str) -> tuple[str, str, str]:
    """Returns the phase, as a prefix, the kind and the path of a figure.

    >>> _parts("weight/layers/0"), _parts("g/update/net/2")
    (('', 'weight', 'layers/0'), ('g/', 'update', 'net/2'))
    """
    for kind in ("gradient", "weight", "update"):
        before, found, module = f"/{name}".partition(f"/{kind}/")
        if found:
            return before[1:] + "/" if before else "", kind, module
    raise AssertionError(name)
