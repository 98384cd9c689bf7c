"""What happens between chunks of steps. A hook is called whenever its `every` divides the step, and at the end.

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
    """What a hook sees of the batches that a run reads."""

    chunk_steps: int
    decode: Callable[[Batch], Batch] | None  # of examples that wait as the source keeps them

    @property
    def batch_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of a step's batch on one replica, [microbatches, rows, ...], as phases read it."""

    @property
    def chunk_spec(self) -> Any:
        """Returns the specs of a chunk as a `tf.function` takes it."""


class Run(Protocol):
    """What a hook sees of the run that calls it."""

    experiment: Experiment
    averaged: Averaged  # the task as evaluation reads it, once it has been updated
    workdir: Workdir
    telemetry: Telemetry
    train_step: TrainStep

    @property
    def input(self) -> Batches:
        """Returns the batches that the run reads."""

    @property
    def step(self) -> int:
        """Counts the steps that are done."""

    @property
    def steps(self) -> int:
        """Counts the steps that there are to do."""

    def figures(self) -> dict[str, float]:
        """Returns the weighted means since the last metric line."""

    def take_figures(self) -> dict[str, float]:
        """Returns the figures of a metric line, speed included, and begins the next."""

    def next_chunk(self) -> Batch:
        """Returns the chunk of batches that the next step is in, without taking it."""

    def evaluate(self) -> dict[str, float]:
        """Evaluates and reports the figures; returns all that were reported last."""

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes figures of how good the task has become; the last ones end up in the run's result."""

    def check_replicas(self) -> None:
        """Raises a `DriftError` where replicas no longer hold the same variables."""

    def save(self) -> Path:
        """Begins to save a checkpoint of this moment; returns where it will lie once it is written."""

    def settle(self) -> None:
        """Waits until what is being saved is written."""

    def stop(self, reason: str) -> None:
        """Ends the run at this step: what is due at the end follows, and `reason` is kept with it."""


class ChunkHook:
    """Follows a training from chunk to chunk."""

    def begin(self, run: Run) -> None:
        """Begins, once all is traced and before the first step."""

    def before_chunk(self, run: Run) -> None:
        """Does what belongs before a chunk of steps, which begins at `run.step`."""

    def after_chunk(self, run: Run) -> None:
        """Does what belongs after a chunk of steps, before the hooks that are due are called."""

    def close(self) -> None:
        """Frees what it holds, however the training ends."""


class Hook(ChunkHook, abc.ABC):
    """Base class; `every=None` means only at the end of the run."""

    every: int | None = None
    section = "hook"  # of the run that it is, to its watchdog
    scope = ""  # that gin made it in
    of: Callable[[], Experiment | None] | None = None  # whose run it has been in, where calls of Python trained it

    def __init__(self, every: int | None = None):
        self.every, self.scope = every, gin.current_scope_str()

    @property
    def interval_name(self) -> str:
        """Returns the name by which a gin file binds `every`: `a/MyHook.every` of `@a/MyHook()`."""
        return "/".join(filter(None, (self.scope, f"{type(self).__name__}.every")))

    def due(self, step: int, steps: int) -> bool:
        """Says whether to call the hook after `step` of `steps` steps."""
        return step == steps or (self.every is not None and step % self.every == 0)

    def check_kept(self, keep: Keep, checkpoint_every: int | None) -> None:  # most hooks save nothing
        """Raises a `ConfigurationError` if the run doesn't keep the checkpoints that the hook counts on."""

    def check(self, run: Run) -> None:  # most hooks fit every run
        """Raises a `ConfigurationError` where the hook doesn't fit what is trained; called before the first step."""

    @abc.abstractmethod
    def __call__(self, run: Run) -> None:
        """Does the hook's work; `run.step` steps are done."""

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the hook: values that JSON holds, an array as its list."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # most hooks keep nothing
        """Takes over the state that a checkpoint kept."""


def by_name(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """Names each hook by its class; of several of one class, the second is `Name_2`."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        name = type(hook).__name__
        same = sum(type(other).__name__ == name for other in named.values())
        named[f"{name}_{same + 1}" if same else name] = hook
    return named


LACKING = "until then the run goes on without"


def keep_sample(run: Run, name: str, content: bytes) -> None:
    """Writes a file, whole; where there is no room for it, it is left out, with one warning."""
    path = run.workdir.path / "samples" / name
    with run.telemetry.sparing():
        with space_for(path.parent, then=LACKING):
            path.parent.mkdir(exist_ok=True)
        write_whole({path: content}, then=LACKING)
