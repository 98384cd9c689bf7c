"""Hooks, which are called between chunks of steps: the base class, `Run` (a hook's view of the run), shipped hooks.

A hook is called whenever its `every` divides the step, and at the end:

    @gin.configurable
    class Heartbeat(Hook):
        def __call__(self, run):
            (run.workdir.path / "heartbeat").write_text(str(run.step))

In a gin file: `Trainer.hooks = [@Heartbeat()]` and `Heartbeat.every = 100`. The file of a shipped hook is imported when
the hook is first used, because most runs use few hooks.
"""

import abc
import importlib
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
from trainers.gin_audit import registry
from trainers.workdir import Workdir


class Batches(Protocol):
    """A hook's view of the run's training batches."""

    chunk_steps: int
    decode: Callable[[Batch], Batch] | None  # decodes examples that are in the source's storage format

    @property
    def batch_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of a step's batch on one replica, [microbatches, rows, ...], as phases read it."""

    @property
    def chunk_spec(self) -> Any:
        """Returns the specs of a chunk of batches, as the input signature of a `tf.function`."""


class Run(Protocol):
    """A hook's view of the run that calls it."""

    experiment: Experiment
    averaged: Averaged  # the task that evaluation reads; call its `update` first
    workdir: Workdir
    telemetry: Telemetry
    train_step: TrainStep

    @property
    def input(self) -> Batches:
        """Returns a view of the run's training batches."""

    @property
    def step(self) -> int:
        """Returns the number of completed steps."""

    @property
    def steps(self) -> int:
        """Returns the number of steps of the whole run."""

    def figures(self) -> dict[str, float]:
        """Returns the metrics of the steps since the last metric line: weighted means."""

    def take_figures(self) -> dict[str, float]:
        """Returns the metrics since the last metric line, speed included, and resets them."""

    def next_chunk(self) -> Batch:
        """Returns the chunk of batches that contains the next step, without consuming it."""

    def evaluate(self) -> dict[str, float]:
        """Evaluates the task, reports the metrics, and returns the last reported metrics of all splits."""

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes quality metrics of the task. The last reported values become part of the run's result."""

    def check_replicas(self) -> None:
        """Raises a `DriftError` if replicas hold different values of a variable."""

    def save(self) -> Path:
        """Starts to save a checkpoint of the current step in the background. Returns the checkpoint's path."""

    def settle(self) -> None:
        """Waits until pending checkpoints are written."""

    def stop(self, reason: str) -> None:
        """Ends the run after this step, with all hooks and saves that are due at the end. `reason` is recorded."""


class ChunkHook:
    """Observes training: its methods are called before and after each chunk of steps."""

    def begin(self, run: Run) -> None:
        """Called when tracing is complete and before the first step, once in each stage of `Trainer.stages`."""

    def before_chunk(self, run: Run) -> None:
        """Called before each chunk of steps. The chunk begins at `run.step`."""

    def after_chunk(self, run: Run) -> None:
        """Called after each chunk of steps, before hooks that are due are called."""

    def close(self) -> None:
        """Frees resources, however the training or its stage ends."""


class Hook(ChunkHook, abc.ABC):
    """Base class of hooks, called every `every` steps and at the end. `every=None` means only at the end."""

    every: int | None = None
    section = "hook"  # the watchdog's name for this part of the run
    noise_scale = False  # whether steps measure the gradient noise scale for it
    scope = ""  # the gin scope in which it was made
    of: Callable[[], Experiment | None] | None = None  # the experiment it was used in, if Python calls trained it

    def __init__(self, every: int | None = None):
        self.every, self.scope = every, gin.current_scope_str()

    @property
    def interval_name(self) -> str:
        """Returns the name that binds `every` in a gin file: `a/MyHook.every` for `@a/MyHook()`."""
        return "/".join(filter(None, (self.scope, f"{type(self).__name__}.every")))

    def due(self, step: int, steps: int) -> bool:
        """Returns whether to call the hook when `step` of the run's `steps` steps are completed."""
        return step == steps or (self.every is not None and step % self.every == 0)

    def check_kept(self, keep: Keep, checkpoint_every: int | None) -> None:  # most hooks save nothing
        """Raises a `ConfigurationError` if `keep` and `checkpoint_every` don't keep what the hook needs."""

    def check(self, run: Run) -> None:  # most hooks fit every run
        """Raises a `ConfigurationError` if the hook doesn't fit the task; called before the first step."""

    @abc.abstractmethod
    def __call__(self, run: Run) -> None:
        """Does the hook's work when `run.step` steps are completed."""

    def state(self) -> dict[str, Any]:
        """Returns the hook's state for a checkpoint: JSON values, with arrays as lists."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # most hooks have no state
        """Restores the hook from `state`, which `state()` returned when the checkpoint was saved."""


def by_name(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """Returns `{name: hook}`. The name is the class's name, and `Name_2` for a second hook of the class."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        name = type(hook).__name__
        same = sum(type(other).__name__ == name for other in named.values())
        named[f"{name}_{same + 1}" if same else name] = hook
    return named


LACKING = "until then the run goes on without"


def keep_sample(run: Run, name: str, content: bytes) -> None:
    """Writes the file `samples/NAME` of the run atomically. If the disk is full, warns once and skips the file."""
    path = run.workdir.path / "samples" / name
    with run.telemetry.sparing():
        with space_for(path.parent, then=LACKING):
            path.parent.mkdir(exist_ok=True)
        write_whole({path: content}, then=LACKING)


FILES = {
    "Activations": "activations",
    "DigitQuality": "digits",
    "EarlyStopping": "early_stopping",
    "Histograms": "histograms",
    "ImageQuality": "image_quality",
    "Judge": "samples",
    "LinearProbe": "probe",
    "NoiseScale": "noise_scale",
    "Norms": "norms",
    "Quality": "samples",
    "Reconstructions": "reconstructions",
    "SampleGrid": "samples",
    "Texts": "texts",
    "Track": "track",
    "Translations": "translations",
    "digit_quality": "digits",
    "kept_digits": "digits",
}

__all__ = [*FILES, "Hook", "Run"]


def register(selectors: Sequence[str] = tuple(FILES)) -> None:
    """Imports the hooks named in `selectors`, so that gin knows them; all hooks if a selector is unknown.

    An unknown selector is a typo, and the later error suggests the nearest of all names.
    """
    for selector in selectors:
        if file := FILES.get(selector.rpartition(".")[2]):
            importlib.import_module(f"trainers.hooks.{file}")
    if not all(registry.matches(selector) for selector in selectors if selector not in FILES):
        register()


def __getattr__(name: str) -> Any:
    """Imports the hook's file when `trainers.hooks.NAME` is first used."""
    if name not in FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainers.hooks.{FILES[name]}"), name)
