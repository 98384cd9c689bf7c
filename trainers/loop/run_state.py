"""All that a run goes on from, saved and restored as one checkpoint."""

import contextlib
import fnmatch
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from core import checkpoint
from core.checkpoint import Best
from core.cluster import is_chief, joined
from core.distribution import Agreement, Backend
from core.engine import ALL_WELL, Progress, Skipping
from core.errors import CheckpointError, ConfigurationError, DriftError, NotFiniteError, shown
from core.optimizers import Optimizer
from core.weights import AVERAGES
from trainers.errors.tensorflow import REMEDY
from trainers.evaluation.averaged_weights import restore, where_averages_lie
from trainers.experiment import Experiment
from trainers.hooks.base import Hook, by_name
from trainers.loop.input import SOURCE, Input
from trainers.settings import Settings
from trainers.workdir import Workdir

# Under which a checkpoint says how many replicas took local steps: the numbers hang on it.
REPLICAS = "replicas"
FINISHED = "finished"  # how a run has ended that came to its last step
# And which steps it left out in a row, how often it went back.
PASSED_OVER = "passed_over"
# Under which it says what weights the run began with, for as long as the run goes on.
START_FROM = "start_from"
# And at which step it went on with fresh optimizers.
RESTART = "restart_optimizer"
BEGINNINGS = (START_FROM, RESTART)


class RunState:
    """What is learnt, the metric line in flight, the step, the place in the data, what hooks keep and have reported.

    `beginnings` is what each checkpoint of the run remembers of how it began.
    `stopped` is the reason that a hook gave for ending the run early; `reported` holds the last figures of how good it
    is, and `complete` says that those of the end are among them.
    """

    def __init__(
        self,
        experiment: Experiment,
        workdir: Workdir,
        settings: Settings,
        *,
        variables: Mapping[str, tf.Variable],
        optimizers: Sequence[Optimizer],
        input: Input,
        progress: Progress,
        hooks: Sequence[Hook],
        skipping: Skipping | None = None,
    ):
        self.workdir, self.settings, self.input, self.progress, self.hooks = workdir, settings, input, progress, hooks
        self.variables, self.optimizers, self.skipping = variables, optimizers, skipping
        self._restore = functools.partial(restore, assembly=experiment.assembly, say=functools.cache(print))
        self._where_averages_lie = functools.cache(lambda: where_averages_lie(experiment.assembly))
        self.beginnings: dict[str, Any] = {}
        tokenizer = experiment.train_source.tokenizer
        self.tokenizer = tokenizer and tokenizer.identity
        self.backend = settings.backend(experiment.assembly)
        self._check_drift = self.backend.drift_check(self.variables)
        self.peers = peers_of(self.backend)
        self.saves = checkpoint.Saves(workdir.checkpoints, keep=settings.keep, peers=self.peers)
        self.replicas = experiment.strategy.num_replicas_in_sync
        self.step = 0
        self.stopped: str | None = None
        self.reported: dict[str, float] = {}
        self.complete = False
        self._measured: tuple[int, dict[str, float]] = (0, {})  # what was reported at which step
        self.rollbacks = 0
        self.unsaved_restart = False  # of the optimizers, at the newest checkpoint
        self._begun = self._hook_states() if settings.policies.rolls_back else {}

    @property
    def finished(self) -> bool:
        """Says whether there is no step left to do."""
        return self.step >= self.settings.steps or self.stopped is not None

    @property
    def outcome(self) -> str:
        """Says how a finished run ended."""
        return FINISHED if self.stopped is None else f"stopped at step {self.step}: {self.stopped}"

    @property
    def best(self) -> Best | None:
        """Returns the best checkpoint that is kept; the chief alone knows it."""
        return self.saves.keeper.best(self.step)

    def check_replicas(self) -> None:
        """Raises a `DriftError`, on all workers, where replicas no longer hold the same variables."""
        try:
            self._check_drift()
        except DriftError:
            with contextlib.suppress(CheckpointError):  # the drift is why the run ends
                self.saves.settle()  # what is being saved is from before: of parts, all see to it that it is whole
            raise

    def report(self, figures: Mapping[str, float]) -> None:
        """Takes over figures of how good this state is."""
        step, before = self._measured
        self._measured = self.step, {**(before if step == self.step else {}), **figures}
        self.reported |= figures

    def save(self, *, warn: Callable[[str], None] = print) -> Path:
        """Begins to save a checkpoint of this moment; returns where it will lie once it is written.

        Every worker calls it; of what is cut each writes parts.
        """
        self.check_replicas()  # what has drifted apart isn't worth keeping
        stream = self.input.kept(self.step)
        if unfit := self.unfit():
            raise NotFiniteError(unfit)
        self.unsaved_restart = False
        if not is_chief() and self.peers.workers == 1:
            return checkpoint.path_of(self.workdir.checkpoints, self.step)
        self.workdir.check_there()
        self.saves.warn = warn
        measured_at, measured = self._measured
        return self.saves.begin(
            {**self.variables, **self.progress.variables},
            step=self.step,
            measured=measured if measured_at == self.step else {},
            examples=self.input.examples_before(self.step),
            config_hash=self.workdir.config_hash,
            extra={
                "configuration": dict(self.workdir.configuration),
                SOURCE: self.input.description,
                **({"tokenizer": self.tokenizer} if self.tokenizer else {}),
                **({REPLICAS: self.replicas} if self.backend.in_rounds else {}),
                **({AVERAGES: averages} if (averages := self._where_averages_lie()) else {}),
                **self.beginnings,
                **({"stream": stream} if stream else {}),
                **self._kept_by_hooks(),
                **self._passed_over(),
                "reported": {
                    "figures": _finite(self.reported),
                    "complete": self.complete,
                    "hooks": self._given_hooks(),
                },
                **self._stop_record(),
            },
        )

    def unfit(self) -> str | None:
        """Says what of this moment isn't finite and so isn't worth keeping, if anything."""
        for path, variable in self.variables.items():
            if variable.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(variable)):
                return (
                    f"after step {self.step}, `{path}` is not finite, though every loss and gradient was: what the "
                    f"step made of them wasn't. Nothing was saved. {REMEDY}"
                )
        return None

    def settle(self, *, note: Callable[[str], object] = print) -> None:
        """Waits until no save is under way, with a `note` where that takes long; raises what went wrong in it.

        Every worker calls it, and whoever reads checkpoints of a run that goes on calls it first.
        """
        self.saves.settle(note)

    def tidy(self, *, warn: Callable[[str], None] = print) -> None:
        """Removes what the last save of a finished run, if it was killed, would have removed: no other one will."""
        if is_chief():
            self.saves.keeper.tidy(self.step, warn)

    def restore(self, manifest: checkpoint.Manifest, *, optimizers: bool = True) -> bool:
        """Goes on from a checkpoint; returns whether its metric line in flight goes on as well.

        What it holds of `optimizers` is left there if they are to begin anew, which may be others than they were. A
        run that a hook has stopped is over, unless it is given more steps or other hooks.
        """
        learnt = manifest.extra.get("tokenizer", self.tokenizer)
        if learnt != self.tokenizer:
            raise ConfigurationError(
                f"{manifest.path} learnt tokens of {shown(learnt)}, but those of `Experiment.train_source` are of "
                f"{shown(self.tokenizer)}: give the tokenizer that it was trained with, or another `--workdir`."
            )
        round_steps = self.settings.round_steps
        if manifest.step % round_steps:
            raise ConfigurationError(
                f"{manifest.path} is of step {manifest.step}, which is within a round of `Trainer.local_steps` = "
                f"{round_steps}: give a number that divides it."
            )
        saved = {path: v[:2] for path, v in manifest.variables.items() if path.startswith("figures/")}
        live = self.progress.variables
        same = {path: (tuple(v.shape), v.dtype.name) for path, v in live.items()} == saved
        left = [] if optimizers else ["optimizer/*", "outer/*"]
        if not same:  # the task reports other figures than it did: the line in flight can't be finished
            left.append("figures/*")
        whole = {**self.variables, **(live if same else {})}
        held = [pattern for pattern in left if fnmatch.filter([*whole, *manifest.variables], pattern)]
        self._restore(manifest, whole, partial=held)
        self.step, self.stopped, self.reported, self.complete = manifest.step, None, {}, False
        self._measured = manifest.step, dict(checkpoint.kept_of(manifest.extra).get("measured", {}))
        self.beginnings = {name: manifest.extra[name] for name in BEGINNINGS if name in manifest.extra}
        self.input.load(_mapping(manifest.extra.get("stream")), step=manifest.step, examples=manifest.examples)
        kept, stop, reported = (_mapping(manifest.extra.get(name)) for name in ("hooks", "stop", "reported"))
        for name, hook in by_name(self.hooks).items():
            if name in kept:
                hook.load(kept[name])
        passed_over = _mapping(manifest.extra.get(PASSED_OVER))
        self.rollbacks = passed_over.get("rollbacks", 0)
        if self.skipping:
            self.skipping.load(passed_over)
        if stop and stop.get("hooks") == self._given_hooks() and stop["steps"] >= self.settings.steps:
            self.stopped = stop["reason"]
        if reported and reported.get("hooks") == self._given_hooks():  # other hooks have yet to report theirs
            self.reported = {name: math.nan if x is None else x for name, x in reported["figures"].items()}
            self.complete = self.finished and reported["complete"]
        return same

    def go_back(self, manifest: checkpoint.Manifest) -> None:
        """Goes on from an earlier checkpoint with the examples that come next: those since then are passed over."""
        rollbacks, examples, stream = self.rollbacks, self.input.examples_before(self.step), self.input.kept(self.step)
        for name, hook in by_name(self.hooks).items():
            if name in self._begun and name not in _mapping(manifest.extra.get("hooks")):
                hook.load(self._begun[name])
        restarted = None if RESTART in manifest.extra else self.beginnings.get(RESTART)
        self.restore(manifest, optimizers=restarted is None)
        if restarted:
            self.go_on_with_fresh_optimizers(manifest)
        self.progress.bad_step.assign(ALL_WELL)
        self.input.load(stream, step=self.step, examples=examples)
        self.rollbacks = max(rollbacks, self.rollbacks) + 1

    def _hook_states(self) -> dict[str, Any]:
        return {name: hook.state() for name, hook in by_name(self.hooks).items()}

    def _passed_over(self) -> dict[str, Any]:
        """Returns what is to be known of steps that were left out or taken back."""
        found = self.skipping.state() if self.skipping else {}
        found |= {"rollbacks": self.rollbacks} if self.rollbacks else {}
        return {PASSED_OVER: found} if found else {}

    def restart_optimizers(self) -> None:
        """Has all optimizers begin anew from the weights as they are, the outer rule of local steps among them."""
        for optimizer in self.optimizers:
            optimizer.restart()

    def go_on_with_fresh_optimizers(self, manifest: checkpoint.Manifest) -> bool:
        """Has all optimizers begin anew from what was restored; returns whether that may take its place at once.

        It may not where the checkpoint is the best one by what evaluation read of its averages. If the run is killed
        before the next one, the same command begins there once more.
        """
        self.restart_optimizers()
        self.beginnings[RESTART] = {"step": self.step}
        if not manifest.extra.get(AVERAGES):
            return True
        self._measured = self.step, {}  # by other averages
        self.unsaved_restart = checkpoint.kept_of(manifest.extra).get("best", {}).get("step") == self.step
        return not self.unsaved_restart

    def _kept_by_hooks(self) -> dict[str, Any]:
        states = {name: state for name, state in self._hook_states().items() if state}
        for name, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"`state()` of the hook `{name}` returns {state!r}, which no checkpoint can hold ({error}): use "
                    "numbers, strings, lists and dicts, and for an array `.tolist()`."
                ) from None
        return {"hooks": states} if states else {}

    def _stop_record(self) -> dict[str, Any]:
        if self.stopped is None:
            return {}
        return {"stop": {"reason": self.stopped, "steps": self.settings.steps, "hooks": self._given_hooks()}}

    def _given_hooks(self) -> list[str]:
        bindings = sorted(f"{name} = {value}" for name, value in self.workdir.hooks.items())
        return [*by_name(self.settings.hooks), *bindings]


def peers_of(backend: Backend) -> checkpoint.Peers:
    """Returns which worker this is among those that have to save together: of replicas the chief holds everything."""
    membership = joined()
    if membership is None or not backend.saves_in_parts:
        return checkpoint.Peers()
    return checkpoint.Peers(membership.cluster.index, membership.cluster.size, Agreement(backend.strategy).first_text)


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Returns figures as JSON can hold them: what isn't finite is null, as in `result.json`."""
    return {name: x if math.isfinite(x) else None for name, x in figures.items()}


def _mapping(value: Any) -> dict[str, Any]:
    """Returns what a checkpoint keeps under one name; nothing where a loop of one's own kept something else there."""
    return value if isinstance(value, dict) else {}
