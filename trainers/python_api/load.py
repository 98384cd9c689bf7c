"""Loads a run into Python, for a notebook or script: its trained task, sources and metrics.

>>> run = load("runs/digits_mlp")                                                       # doctest: +SKIP
>>> run.task.evaluate(run.eval_source.gather([0, 1, 2]))                                # doctest: +SKIP
"""

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from core import checkpoint
from core.arguments import is_count
from core.checkpoint import Manifest
from core.data import Source, Stream, check_examples
from core.errors import CheckpointError, ConfigurationError, shown
from core.storage import is_address, parse_address
from core.task import Task
from trainers import configurables as configurables  # registers them
from trainers import hooks
from trainers.evaluation.averaged_weights import averaged_task, restore
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import HERE, Experiment, given_precision
from trainers.gin_audit import audit
from trainers.options.checkpoints import chosen_checkpoint
from trainers.process.bootstrap import CHECKOUT
from trainers.python_api.gin_bindings import KeptBindings
from trainers.runs.figures import Curve
from trainers.runs.find import find_runs
from trainers.runs.read import is_run, read_run
from trainers.settings import Settings, given_peak
from trainers.storage.mirror import stored
from trainers.workdir import Workdir, named_folder

_OF_TRAINING = ("figures", "loss_scale", "outer")  # checkpoint entries that aren't the experiment's variables


@dataclasses.dataclass(frozen=True, repr=False)
class LoadedRun:
    """A run as trained up to `step`. `task` has the averaged weights if there are any.

    `experiment` has the trained weights and the optimizers. `figures` are the run's metrics, as `{"eval/loss": curve}`.
    """

    path: Path
    step: int
    task: Task
    experiment: Experiment
    figures: Mapping[str, Curve]
    manifest: Manifest
    _bindings: KeptBindings | None  # None for a run trained from Python

    @property
    def train_source(self) -> Source | Stream:
        """Returns the training source."""
        return self.experiment.train_source

    @property
    def eval_source(self) -> Source | None:
        """Returns the held-out source."""
        return self.experiment.eval_source

    @property
    def eval_sources(self) -> Mapping[str, Source]:
        """Returns the further held-out sources by name."""
        return self.experiment.eval_sources

    def evaluate(self, source: Source | Stream | None = None) -> dict[str, float]:
        """Returns the metrics of the task's `evaluate` over all of `source`, by default the run's `eval_source`."""
        source = self.eval_source if source is None else source
        given = next((f"run.eval_sources[{name!r}]" for name in self.eval_sources), "digits('test')")
        if source is None:
            raise ConfigurationError(
                f"`{self.path}` has nothing to evaluate on: it was trained without `Experiment.eval_source`. Give a "
                f"source, as `run.evaluate({given})`."
            )
        check_examples("source", source)
        if isinstance(source, Stream):
            raise ConfigurationError(
                f"`source` is the stream `{source.name}`, but an evaluation needs a fixed number of examples: give a "
                "source with a length, as `run.evaluate(digits('test'))`."
            )
        with self.bindings():
            self.experiment.task.check_source(source)
            return Evaluator(self.experiment, source).evaluate()

    def bindings(self) -> contextlib.AbstractContextManager[None]:
        """Puts the run's gin bindings in force within a block, for user code that calls the run's configurables."""
        return self._bindings.in_force() if self._bindings else contextlib.nullcontext()

    def __repr__(self) -> str:
        of_step = {name: curve.at(self.step) for name, curve in self.figures.items() if name.startswith("eval/")}
        told = (f"{name} {value:.4g}" for name, value in of_step.items() if value is not None)
        return f"LoadedRun({', '.join([repr(str(self.path)), f'step {self.step:,}', repr(self.task), *told])})"


def load(workdir: str | os.PathLike[str], step: int | Literal["best"] | None = None) -> LoadedRun:
    """Loads the run in `workdir` from its newest checkpoint, or from that of `step`, onto one device.

    `step="best"` means the checkpoint that `Trainer.keep_best` keeps.

    The run may be training: nothing is written or locked. gin's bindings in this process stay unchanged. The run has
    separate ones.
    """
    named = named_folder(workdir)
    path = named.absolute()
    if is_address(address := os.fsdecode(workdir)):
        with stored(parse_address(address, "workdir"), Workdir(path), writes=False):
            pass
    if not (step is None or step == "best" or is_count(step)):
        raise ConfigurationError(
            f"`step` is {shown(step)}; give the step of a checkpoint such as 400, or 'best', or omit it for the newest."
        )
    if not is_run(path):
        below = find_runs([str(named)])  # or raises an error
        raise ConfigurationError(f"{shown(str(named))} is a folder of runs: give one, as {shown(str(below[0]))}.")
    here = [f"Experiment.{name} = {value}" for name, value in HERE.items()]  # whatever strategy the run had
    with _modules_from_here():
        configuration = audit.read([str(_given(path))], here, search=[CHECKOUT])
        bindings = KeptBindings(
            lambda: configuration.bind(
                [Experiment, Settings, Evaluator, given_peak], required=[Experiment], register=hooks.register
            )
        )
    with bindings.in_force():
        experiment = Experiment()
        experiment.compute_in(given_precision())
        manifest = _restore(experiment, Workdir(path), step)
        averaged = averaged_task(experiment)
        averaged.update()
        late = configuration.taken_by_code()
    if late:
        warnings.warn(
            f"`{path}` binds {', '.join(late)}, which nothing has used so far. Code that calls it later, in a step, "
            "must be within `with run.bindings():` to find the bindings.",
            stacklevel=2,
        )
    return LoadedRun(path, manifest.step, averaged.task, experiment, read_run(path).figures, manifest, bindings)


def _given(path: Path) -> Path:
    """Returns the path of the run's `given.gin`. Raises a `ConfigurationError` if there is none."""
    given = path / "config" / "given.gin"
    if given.is_file():
        return given
    if (path / "config" / "operative.gin").is_file():
        raise ConfigurationError(
            f"`{path}` was trained by calls of Python, so no gin file says how to make its task: make the experiment "
            "as before and call `trainers.train`, which returns a finished run unchanged."
        )
    raise ConfigurationError(
        f"`{path}` has no `config/given.gin`, the configuration of the run: the run hasn't started, or failed to. "
        "`python -m trainers.runs` lists it, with the reason."
    )


@contextlib.contextmanager
def _modules_from_here() -> Iterator[None]:
    """Adds the working directory to Python's path for the run's own modules, as the run's command did."""
    here = os.getcwd()
    if here in sys.path:
        yield
        return
    sys.path.append(here)  # last, so that it shadows no other module
    try:
        yield
    finally:
        sys.path.remove(here)


def _restore(experiment: Experiment, workdir: Workdir, step: int | Literal["best"] | None) -> Manifest:
    """Restores the experiment's variables; retries, because a running training may delete a checkpoint meanwhile."""
    while True:
        manifest = _found(workdir, step)
        training = [f"{part}/*" for part in _OF_TRAINING if any(x.startswith(f"{part}/") for x in manifest.variables)]
        try:
            restore(manifest, experiment.variables, assembly=experiment.assembly, partial=training, say=_warn)
        except CheckpointError:
            if manifest.path.exists() or step is not None:
                raise
        else:
            return manifest


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _found(workdir: Workdir, step: int | Literal["best"] | None) -> Manifest:
    if step == "best":
        return chosen_checkpoint(workdir, step, _found(workdir, None))
    manifest = checkpoint.newest(workdir.checkpoints, warn=lambda text: warnings.warn(text, stacklevel=4), up_to=step)
    if manifest is not None and step in (None, manifest.step):
        return manifest
    there = sorted(path.name for path in workdir.checkpoints.glob("step-*"))
    if not there:
        raise CheckpointError(
            f"there is no checkpoint in `{workdir.checkpoints}`: the run hasn't saved its first yet; see "
            f"`Trainer.checkpoint_every`."
        )
    raise CheckpointError(
        f"`step` is {shown(step)}, but `{workdir.checkpoints}` has no complete checkpoint of that step. It "
        f"holds {', '.join(f'`{name}`' for name in there)}: give the step of one of them, or omit `step` for the "
        "newest."
    )
