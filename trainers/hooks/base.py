"""The base class of hooks. A hook is called whenever its `every` divides the step, and at the end.

    @gin.configurable
    class Heartbeat(Hook):
        def __call__(self, run):
            (run.workdir.path / "heartbeat").write_text(str(run.step))

In a gin file: `Trainer.hooks = [@Heartbeat()]` and `Heartbeat.every = 100`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gin
import tensorflow as tf

from core.checkpoint import Keep
from core.disk import space_for, write_whole
from core.engine import TrainStep
from core.task import Batch
from core.telemetry import Telemetry
from trainers.evaluation.averaged_weights import Averaged
from trainers.experiment import Experiment
from trainers.workdir import Workdir


class Batches(Protocol):
    """A hook's view of the batches that a run reads."""

    chunk_steps: int
    decode: Callable[[Batch], Batch] | None  # decodes examples that are in the source's storage format

    @property
    def batch_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of a step's batch on one replica, [microbatches, rows, ...], as phases read it."""

    @property
    def chunk_spec(self) -> Any:
        """Returns the specs of a chunk, for a `tf.function`."""


class Run(Protocol):
    """A hook's view of the run that calls it."""

    experiment: Experiment
    averaged: Averaged  # the task that evaluation reads; call its `update` first
    workdir: Workdir
    telemetry: Telemetry
    train_step: TrainStep

    @property
    def input(self) -> Batches:
        """Returns the batches that the run reads."""

    @property
    def step(self) -> int:
        """Returns the number of completed steps."""

    @property
    def steps(self) -> int:
        """Returns the number of steps of the whole run."""

    def figures(self) -> dict[str, float]:
        """Returns the weighted means since the last metric line."""

    def take_figures(self) -> dict[str, float]:
        """Returns the metrics of a metric line, speed included, and resets them."""

    def next_chunk(self) -> Batch:
        """Returns the chunk of batches that contains the next step, without consuming it."""

    def evaluate(self) -> dict[str, float]:
        """Evaluates and reports the metrics; returns the last reported ones of all splits."""

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes metrics of the task's quality; the last ones become part of the run's result."""

    def check_replicas(self) -> None:
        """Raises a `DriftError` if replicas hold different values of a variable."""

    def save(self) -> Path:
        """Starts to save a checkpoint of this step; returns its future path."""

    def settle(self) -> None:
        """Waits until pending checkpoints are written."""

    def stop(self, reason: str) -> None:
        """Ends the run after this step, with all that is due at the end; `reason` is recorded."""


class ChunkHook:
    """Observes a training from chunk to chunk."""

    def begin(self, run: Run) -> None:
        """Is called once, after tracing and before the first step."""

    def before_chunk(self, run: Run) -> None:
        """Is called before a chunk of steps, which begins at `run.step`."""

    def after_chunk(self, run: Run) -> None:
        """Is called after a chunk of steps, before the hooks that are due."""

    def close(self) -> None:
        """Frees resources, however the training ends."""


class Hook(ChunkHook, abc.ABC):
    """Base class; `every=None` means only at the end of the run."""

    every: int | None = None
    section = "hook"  # the watchdog's name for this part of the run
    scope = ""  # the gin scope in which it was made
    of: Callable[[], Experiment | None] | None = None  # the experiment it was used in, if Python calls trained it

    def __init__(self, every: int | None = None):
        self.every, self.scope = every, gin.current_scope_str()

    @property
    def interval_name(self) -> str:
        """Returns the name by which a gin file binds `every`: `a/MyHook.every` of `@a/MyHook()`."""
        return "/".join(filter(None, (self.scope, f"{type(self).__name__}.every")))

    def due(self, step: int, steps: int) -> bool:
        """Returns whether to call the hook after `step` of `steps` steps."""
        return step == steps or (self.every is not None and step % self.every == 0)

    def check_kept(self, keep: Keep, checkpoint_every: int | None) -> None:  # most hooks save nothing
        """Raises a `ConfigurationError` if the run doesn't keep the checkpoints that the hook needs."""

    def check(self, run: Run) -> None:  # most hooks fit every run
        """Raises a `ConfigurationError` if the hook doesn't fit the task; called before the first step."""

    @abc.abstractmethod
    def __call__(self, run: Run) -> None:
        """Does the hook's work, after `run.step` steps."""

    def state(self) -> dict[str, Any]:
        """Returns the hook's state for a checkpoint: JSON values, with arrays as lists."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # most hooks have no state
        """Restores the state from a checkpoint."""


def by_name(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """Names each hook by its class; the second one of a class is `Name_2`."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        name = type(hook).__name__
        same = sum(type(other).__name__ == name for other in named.values())
        named[f"{name}_{same + 1}" if same else name] = hook
    return named


LACKING = "until then the run goes on without"


def keep_sample(run: Run, name: str, content: bytes) -> None:
    """Writes a whole file; if the disk is full, skips it with one warning."""
    path = run.workdir.path / "samples" / name
    with run.telemetry.sparing():
        with space_for(path.parent, then=LACKING):
            path.parent.mkdir(exist_ok=True)
        write_whole({path: content}, then=LACKING)
