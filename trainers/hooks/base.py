"""What happens between chunks of steps. A hook is called whenever its `every` divides the step, and at the end.

    @gin.configurable
    class Heartbeat(Hook):
        def __call__(self, trainer):
            (trainer.workdir.path / "heartbeat").write_text(str(trainer.step))

In a gin file: `Trainer.hooks = [@Heartbeat()]` and `Heartbeat.every = 100`.
"""

import abc
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.trainer import Trainer


class Hook(abc.ABC):
    """Base class; `every=None` means only at the end of the run."""

    every: int | None = None

    def __init__(self, every: int | None = None):
        self.every = every

    def due(self, step: int, steps: int) -> bool:
        """Whether to call the hook after `step` of `steps` steps."""
        return step == steps or (self.every is not None and step % self.every == 0)

    @abc.abstractmethod
    def __call__(self, trainer: "Trainer") -> None:
        """Does the hook's work; `trainer.step` steps are done."""


class LogMetrics(Hook):
    """Writes the weighted means since the last line, and starts the next."""

    def __call__(self, trainer: "Trainer") -> None:
        trainer.telemetry.write(trainer.step, "train", trainer.take_figures())


class Evaluate(Hook):
    """Evaluates and writes the figures."""

    def __call__(self, trainer: "Trainer") -> None:
        trainer.evaluate()


class SaveCheckpoint(Hook):
    """Saves everything the run needs to go on from here."""

    def __call__(self, trainer: "Trainer") -> None:
        trainer.save()


class CheckReplicas(Hook):
    """Stops the run where replicas no longer hold the same variables."""

    def __call__(self, trainer: "Trainer") -> None:
        trainer.check_replicas()


class KillAfter(Hook):
    """Rehearses a crash: SIGKILLs the process after the given step's chunk."""

    def due(self, step: int, steps: int) -> bool:
        return self.every is not None and step >= self.every

    def __call__(self, trainer: "Trainer") -> None:
        os.kill(os.getpid(), signal.SIGKILL)
