"""The hooks that every run has, and their order."""

import os
import signal
from collections.abc import Mapping
from typing import Any

from trainers.hooks.base import Hook, Run
from trainers.hooks.divergence import Divergence
from trainers.settings import Settings


class LogMetrics(Hook):
    """Writes the weighted means since the last line, and starts the next."""

    def __init__(self, every: int | None, divergence: Divergence):
        super().__init__(every)
        self.divergence = divergence

    def __call__(self, run: Run) -> None:
        figures = run.take_figures()
        if figures["data_wait"] > 0.2:
            run.telemetry.warn_once(
                f"{figures['data_wait']:.0%} of the time was spent waiting for data. Likely causes: a slow disk, "
                "decoding or transforming examples one by one, too few CPU cores. See what the step alone takes with "
                "`--gin_param='Experiment.synthetic=True' --workdir=DIR`."
            )
        run.telemetry.write(run.step, "train", figures)
        self.divergence.trained(figures)


class Evaluate(Hook):
    """Evaluates and writes the figures; warns where they get worse while those of training get better."""

    section = "evaluation"

    def __init__(self, every: int | None, divergence: Divergence):
        super().__init__(every)
        self.divergence = divergence

    def __call__(self, run: Run) -> None:
        if warning := self.divergence.held_out(run.step, run.evaluate()):
            run.telemetry.warn_once(warning)

    def state(self) -> dict[str, Any]:
        return self.divergence.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.divergence.load(state)


class CheckReplicas(Hook):
    """Stops the run where replicas no longer hold the same variables."""

    def __call__(self, run: Run) -> None:
        run.check_replicas()


class SaveCheckpoint(Hook):
    """Saves everything the run needs to go on from here."""

    section = "save"

    def __call__(self, run: Run) -> None:
        run.save()


class KillAfter(Hook):
    """Rehearses a crash: SIGKILLs the process after the given step's chunk, once what it saved is written."""

    def due(self, step: int, steps: int) -> bool:
        return self.every is not None and step >= self.every

    def __call__(self, run: Run) -> None:
        run.settle()
        os.kill(os.getpid(), signal.SIGKILL)


def standard_hooks(settings: Settings, *, evaluates: bool) -> list[Hook]:
    """Lists the hooks of a run: the user's own between the metric line and what they may still change."""
    divergence = Divergence()
    hooks: list[Hook] = [LogMetrics(settings.log_every, divergence), *settings.hooks]
    if evaluates:
        hooks.append(Evaluate(settings.evaluate_every, divergence))
    if settings.check_replicas_every:
        hooks.append(CheckReplicas(settings.check_replicas_every))
    return [*hooks, SaveCheckpoint(settings.checkpoint_every)]
