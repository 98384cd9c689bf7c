"""Norms of each module's gradients, weights and updates during training.

In a gin file:

    Trainer.hooks = [@Norms()]
    Norms.every = 500
"""

from collections.abc import Iterator, Mapping
from typing import Any

import gin

from core.engine import Watch
from core.errors import ConfigurationError
from trainers.hooks import Hook, Run

THROWN_ABOUT = 0.3  # relative to the weight; larger updates destroy what was learnt
ROUNDED_AWAY = 2.0**-24  # relative to the weight; float32 rounds smaller updates away


@gin.configurable
class Norms(Hook):
    """Writes the norms of each module's gradients, weights and updates in the next step.

    The metrics of `norms` in `metrics.jsonl` and TensorBoard are `gradient/PATH`, `weight/PATH` and `update/PATH`. With
    several updates, the phase's name comes first: `PHASE/gradient/PATH`. Phases that aren't due are measured too. Warns
    if updates are far too large, or too small to change weights, twice in a row.
    """

    def __init__(self, every: int | None = None):
        super().__init__(every)
        self._suspects: list[str] = []
        self._watch: Watch | None = None

    def check(self, run: Run) -> None:
        """Prepares the measurement. Raises an error if replicas or workers take separate steps."""
        backend, experiment, batches = run.train_step.backend, run.experiment, run.input
        if not backend.steps_together:
            who = f"{backend.how} {'replicas' if backend.steps_here else 'workers'} take"
            raise ConfigurationError(
                f"`Norms` of `Trainer.hooks` measures the next step, which all devices take together, but {who} "
                "separate steps: remove `Norms`."
            )
        self._watch = Watch(
            experiment.assembly,
            batches.batch_spec,
            batches.chunk_spec,
            seed=experiment.seed,
            steps=run.steps,
            precision=run.train_step.precision.given,
            loss_scales=run.train_step.loss_scales,
            decode=batches.decode,
        )

    def __call__(self, run: Run) -> None:
        assert self._watch, "`check` comes first"
        first = run.step - run.step % run.input.chunk_steps
        norms = self._watch.norms(run.next_chunk(), first=first, step=run.step)  # over all workers
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
    """Yields `(finding, warning)` for each module with zero gradients, or with exploding or vanishing updates."""
    for name, weight in norms.items():
        phase, kind, module = _parts(name)
        if kind != "weight" or weight == 0.0:
            continue
        gradient, update = norms[f"{phase}gradient/{module}"], norms[f"{phase}update/{module}"]
        where = f"`{phase}{module}`"
        if update > THROWN_ABOUT * weight:
            yield (
                f"{where} explodes",
                f"updates of {where} explode: one has {update / weight:.0%} of the weights' norm. A lower learning "
                "rate, a warm-up or `clip_by_global_norm` usually helps.",
            )
        elif gradient == 0.0:
            yield (
                f"{where} is dead",
                f"the gradients of {where} are zero: its output doesn't affect the loss. Units that are never "
                "active, or a loss that has reached its minimum, cause that.",
            )
        elif 0.0 < update < ROUNDED_AWAY * weight:
            yield (
                f"{where} vanishes",
                f"updates of {where} are so small (a norm of {update:.3g}, with weights of {weight:.3g}) that "
                "float32 rounds them away: a higher learning rate, or normalisation before it, usually helps.",
            )


def _parts(name: str) -> tuple[str, str, str]:
    """Splits a metric's name into phase prefix, kind and module path.

    >>> _parts("weight/layers/0"), _parts("g/update/net/2")
    (('', 'weight', 'layers/0'), ('g/', 'update', 'net/2'))
    """
    for kind in ("gradient", "weight", "update"):
        before, found, module = f"/{name}".partition(f"/{kind}/")
        if found:
            return before[1:] + "/" if before else "", kind, module
    raise AssertionError(name)
