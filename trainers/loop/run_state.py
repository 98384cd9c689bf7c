"""The state that a run saves and restores as one checkpoint, and the context that the parts of the loop share."""

import contextlib
import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from core import checkpoint
from core.checkpoint import Best
from core.cluster import is_chief, joined
from core.distribution import Agreement, Backend
from core.engine import ALL_WELL, LOSS_SCALE, Progress, TrainStep
from core.errors import CheckpointError, DriftError, NotFiniteError
from core.weights import AVERAGES
from trainers.errors.tensorflow import REMEDY
from trainers.evaluation.averaged_weights import restore
from trainers.experiment import Experiment
from trainers.hooks import Hook
from trainers.loop.input import Input
from trainers.loop.run_parts import FINISHED, RESTART, Beginnings, Ending, HookStates, Origin, PassedOver, Place
from trainers.process.watchdog import Section
from trainers.settings import Settings
from trainers.workdir import Workdir


class RunState:
    """Variables, pending metric sums, the step, and the named parts of a run.

    `takes` runs a chunk's steps in rounds of local steps, or skips bad steps. If it is None, the engine runs them one
    by one.
    """

    def __init__(
        self,
        experiment: Experiment,
        workdir: Workdir,
        settings: Settings,
        train_step: TrainStep,
        *,
        input: Input,
        hooks: Sequence[Hook],
    ):
        self.workdir, self.settings, self.input = workdir, settings, input
        assembly, backend = experiment.assembly, train_step.backend
        sums = {name: spec.sums_of_update for name, spec in train_step.specs.items()}
        self.progress = Progress(sums, strategy=experiment.strategy)
        rounds = backend.rounds(train_step, assembly)
        self.skipping = settings.policies.skipping(train_step, assembly)
        self.takes = rounds or self.skipping
        self.outer = rounds.meeting.outer if rounds else None
        self.variables = {**experiment.variables, **train_step.scale_variables, **(rounds.variables if rounds else {})}
        self.optimizers = [*assembly.optimizers.values(), *([self.outer] if self.outer else [])]
        self.beginnings, self.place = Beginnings(), Place(input)
        self.hook_states, self.passed_over = HookStates(hooks, settings), PassedOver(self.skipping)
        self.ending = Ending(workdir, settings)
        origin = Origin(experiment, workdir, settings, backend, input)
        self.parts = (origin, self.beginnings, self.place, self.hook_states, self.passed_over, self.ending)
        self._restore = functools.partial(restore, assembly=assembly, say=functools.cache(print))
        self._check_drift = backend.drift_check(self.variables)
        self.peers = peers_of(backend)
        self.saves = checkpoint.Saves(workdir.checkpoints, keep=settings.keep, peers=self.peers)
        self.step = 0
        self.unsaved_restart = False  # whether optimizers restarted at the newest checkpoint

    def advance(self, step: int) -> None:
        """Sets the number of completed steps to `step`."""
        self.step = step

    def take_bad_step(self) -> int | None:
        """Returns the bad step that ended the last chunk, or None. The bad step is then the current one."""
        bad = int(self.progress.bad_step)
        if bad == ALL_WELL:
            return None
        self.step = bad
        return bad

    def begin_again(self, values: Mapping[str, np.ndarray]) -> None:
        """Returns to step 0, with these values of variables by path."""
        self.step = 0
        for path, value in values.items():
            self.variables[path].assign(value)

    @property
    def finished(self) -> bool:
        """Returns whether the run is over."""
        return self.ending.is_over(self.step)

    @property
    def outcome(self) -> str:
        """Describes how a finished run ended."""
        stopped = self.ending.stopped
        return FINISHED if stopped is None else f"stopped at step {self.step}: {stopped}"

    @property
    def best(self) -> Best | None:
        """Returns the best checkpoint, if one is kept; known only to the chief."""
        return self.saves.keeper.best(self.step)

    def check_replicas(self) -> None:
        """Raises a `DriftError` on all workers if replicas hold different values of a variable."""
        try:
            self._check_drift()
        except DriftError:
            with contextlib.suppress(CheckpointError):  # the drift is why the run ends
                self.saves.settle()  # what is being saved is from before: of parts, all see to it that it is whole
            raise

    def save(self, *, warn: Callable[[str], None] = print) -> Path:
        """Starts saving a checkpoint of the current step. Returns the path that it will have.

        Call it on every worker. Each worker writes its shards, if any.
        """
        self.check_replicas()  # diverged replicas aren't saved
        if unfit := self.unfit():
            raise NotFiniteError(unfit)
        extra = {key: value for part in self.parts for key, value in part.state(self.step).items()}
        self.unsaved_restart = False
        if not is_chief() and self.peers.workers == 1:
            return checkpoint.path_of(self.workdir.checkpoints, self.step)
        self.workdir.check_there()
        self.saves.warn = warn
        measured_at, measured = self.ending.measured
        return self.saves.begin(
            {**self.variables, **self.progress.variables},
            step=self.step,
            measured=measured if measured_at == self.step else {},
            examples=self.input.examples_before(self.step),
            config_hash=self.workdir.config_hash,
            extra=extra,
        )

    def unfit(self) -> str | None:
        """Returns a message about the first non-finite variable, which prevents saving, or None."""
        for path, variable in self.variables.items():
            if variable.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(variable)):
                return (
                    f"after step {self.step}, `{path}` is not finite, though every loss and gradient was: what the "
                    f"step made of them wasn't. Nothing was saved. {REMEDY}"
                )
        return None

    def tidy(self, *, warn: Callable[[str], None] = print) -> None:
        """Removes old checkpoints of a finished run. A kill may have prevented the last save from doing so."""
        if is_chief():
            self.saves.keeper.tidy(self.step, warn)

    def restore(self, manifest: checkpoint.Manifest, *, optimizers: bool = True) -> bool:
        """Resumes from a checkpoint. Returns whether its unfinished metric line continues as well.

        `optimizers=False` leaves optimizer state as it is. The optimizers may then differ from the checkpoint's.
        """
        for part in self.parts:
            part.check(manifest)
        saved = {path: v[:2] for path, v in manifest.variables.items() if path.startswith("figures/")}
        live = self.progress.variables
        same = {path: (tuple(v.shape), v.dtype.name) for path, v in live.items()} == saved
        left = [] if optimizers else ["optimizer/*", "outer/*"]
        saved_scales, own_scales = (
            {path for path in paths if path.startswith(f"{LOSS_SCALE}/")}
            for paths in (manifest.variables, self.variables)
        )
        left += sorted(saved_scales ^ own_scales)  # the precision has changed, so a scale begins anew, or ends
        if not same:  # the task's metrics have changed, so the pending line can't be finished
            left.append("figures/*")
        whole = {**self.variables, **(live if same else {})}
        held = [pattern for pattern in left if fnmatch.filter([*whole, *manifest.variables], pattern)]
        self._restore(manifest, whole, partial=held)
        self.step = manifest.step
        for part in self.parts:
            part.load(manifest)
        return same

    def go_back(self, manifest: checkpoint.Manifest, *, past: int) -> None:
        """Returns to an earlier checkpoint. Continues with the examples that follow those of step `past`."""
        self.step = past + 1
        rollbacks = self.passed_over.rollbacks
        examples, stream = self.input.examples_before(self.step), self.input.kept(self.step)
        self.hook_states.begin_again(manifest)
        restarted = None if RESTART in manifest.extra else self.beginnings.record.get(RESTART)
        self.restore(manifest, optimizers=restarted is None)
        if restarted:
            self.go_on_with_fresh_optimizers(manifest)
        self.progress.bad_step.assign(ALL_WELL)
        self.input.load(stream, step=self.step, examples=examples)
        self.passed_over.rolled_back(rollbacks)

    def restart_optimizers(self) -> None:
        """Resets the state of all optimizers, including the outer one of local steps."""
        for optimizer in self.optimizers:
            optimizer.restart()

    def go_on_with_fresh_optimizers(self, manifest: checkpoint.Manifest) -> bool:
        """Resets all optimizers after a restore. Returns whether a new checkpoint may replace `manifest` at once.

        It may not if `manifest` is the best checkpoint, measured with averaged weights. If the run is then killed
        before the next checkpoint, the same command resets the optimizers at `manifest` again.
        """
        self.restart_optimizers()
        self.beginnings.note(RESTART, {"step": self.step})
        if not manifest.extra.get(AVERAGES):
            return True
        self.ending.forget(self.step)  # with other averages
        self.unsaved_restart = checkpoint.kept_of(manifest.extra).get("best", {}).get("step") == self.step
        return not self.unsaved_restart


@dataclasses.dataclass(frozen=True)
class RunContext:
    """The objects of one training run that the parts of its loop share."""

    experiment: Experiment
    train_step: TrainStep
    state: RunState
    agreement: Agreement
    section: Section  # tells watchdog and meter what the run is doing


def peers_of(backend: Backend) -> checkpoint.Peers:
    """Returns the `Peers` that save a checkpoint's shards together; of replicas, the chief alone saves."""
    membership = joined()
    if membership is None or not backend.saves_in_parts:
        return checkpoint.Peers()
    return checkpoint.Peers(membership.cluster.index, membership.cluster.size, Agreement(backend.strategy).first_text)
