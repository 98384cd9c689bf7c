"""Training by a Python call, without gin: the run is listed, shown and resumed like any other.

experiment = Experiment(task=my_task, train_source=digits("train"), eval_source=digits("test"))
settings = Settings(steps=2000, global_batch_size=32)
run = train(experiment, settings, "runs/mine")
"""

import os
import weakref
from collections.abc import Sequence
from typing import Any

from core import checkpoint
from core.errors import ConfigurationError, shown
from core.storage import is_address, parse_address
from trainers.dry_run.budget import fit_budget
from trainers.experiment import Experiment
from trainers.hooks import Hook
from trainers.lifecycle.start import Configured, Start, newest_checkpoint
from trainers.lifecycle.train_to_end import run_training
from trainers.process.signals import Preemption
from trainers.python_api.identity import described, python_identity, read_python_identity
from trainers.python_api.load import LoadedRun
from trainers.runs.read import read_run
from trainers.session import changeable, leave_capsule, step_of
from trainers.settings import Settings
from trainers.storage.mirror import stored
from trainers.trainer import Trainer
from trainers.workdir import Workdir, named_folder


def train(
    experiment: Experiment, settings: Settings, workdir: str | os.PathLike[str], *, quiet: bool = False
) -> LoadedRun:
    """Trains `experiment` in a folder, or resumes from its newest checkpoint, and returns the run.

    The same call resumes a stopped run, and returns a finished one. `quiet` prints nothing. A first Ctrl-C saves and
    raises a `PreemptedError`; a second one interrupts at once.
    """
    for name, value, kind in (("experiment", experiment, Experiment), ("settings", settings, Settings)):
        if not isinstance(value, kind):
            raise ConfigurationError(
                f"`{name}` is {shown(value)}; give a `trainers.{kind.__name__}(...)`: "
                "`trainers.train(experiment, settings, 'runs/mine')`."
            )
    folder = Workdir(named_folder(workdir))
    if not is_address(text := os.fsdecode(workdir)):
        return _train(experiment, settings, folder, quiet=quiet)
    with stored(parse_address(text, "workdir"), folder, writes=True) as more_hooks:
        return _train(experiment, settings, folder, more_hooks, quiet=quiet)


def _train(
    experiment: Experiment, settings: Settings, folder: Workdir, more_hooks: Sequence[Hook] = (), *, quiet: bool
) -> LoadedRun:
    preemption = Preemption(ends_process=False)
    fitted, more = settings, dict[str, Any]()
    if settings.memory_budget is not None:
        fitted, more["before_tracing"] = fit_budget(experiment, settings, folder)
    step = step_of(fitted, folder)
    trainer = Trainer(
        experiment, folder, fitted, preemption, step=step, leave_capsule=leave_capsule, more_hooks=more_hooks, **more
    )
    own = python_identity(experiment, settings, changeable(trainer))
    configured = Configured(
        identity=own,
        hooks={},
        read=lambda saved: read_python_identity(saved, own),
        given=lambda: None,
        operative=lambda: _text(experiment, settings),
        note=lambda before: "",
        remedy="Train this one in another folder, or call `trainers.train` with the same arguments as before.",
        source=trainer.input.description,
        precision=settings.precision,
    )
    start = _Fresh(trainer.workdir, configured, experiment, settings)
    try:
        last = run_training(trainer, start, preemption, quiet=quiet)
        manifest = newest_checkpoint(folder)
    finally:
        trainer.stop_reading()
        folder.release()
    assert manifest is not None  # a run saves at its end
    last.averaged.update()
    path = folder.path
    return LoadedRun(path, last.step, last.averaged.task, experiment, read_run(path).figures, manifest, None)


class _Fresh(Start):
    """Raises an error if a new run would begin with a used experiment or used hooks, which have state."""

    def __init__(self, workdir: Workdir, configured: Configured, experiment: Experiment, settings: Settings):
        super().__init__(workdir, configured)
        self._experiment, self._settings = experiment, settings

    def claim(self) -> checkpoint.Manifest | None:
        found = super().claim()
        optimizers = self._experiment.assembly.optimizers.values()
        if found is None and any(int(optimizer.step.numpy()) for optimizer in optimizers):
            raise ConfigurationError(
                f"`experiment` was trained before, and `{self.workdir.named}` has no checkpoint to resume from: make "
                "a new one with `Experiment(...)`, so that the run begins with new weights."
            )
        if found is None or found.step < self._settings.steps:
            for hook in self._settings.hooks:
                if hook.of is not None and hook.of() is not self._experiment:
                    name = type(hook).__name__
                    raise ConfigurationError(
                        f"`Trainer.hooks` holds a `{name}` that was used in a run of another experiment, and may have "
                        f"its state: make a new one with `{name}(...)`, and new settings with `Settings(...)`."
                    )
        return found

    def record(self, step: int) -> None:
        super().record(step)
        for hook in self._settings.hooks:
            hook.of = weakref.ref(self._experiment)


def _text(experiment: Experiment, settings: Settings) -> str:
    """Returns the configuration in the form of a gin file, for commands that list and compare runs."""
    lines = (f"{name} = {value}" for name, value in described(experiment, settings).items())
    return "\n".join(["# Trained by calls of Python: this file is for reading, not for running.", *lines, ""])
