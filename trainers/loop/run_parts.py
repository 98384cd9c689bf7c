"""The parts of a run that a manifest records besides variables, each under its own keys."""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from core import checkpoint
from core.distribution import Backend
from core.engine import Skipping
from core.errors import ConfigurationError, shown
from core.weights import AVERAGES
from trainers.evaluation.averaged_weights import where_averages_lie
from trainers.experiment import Experiment
from trainers.hooks import Hook, by_name
from trainers.loop.input import SOURCE, Input
from trainers.settings import Settings
from trainers.workdir import Workdir

REPLICAS = "replicas"  # that took local steps: the numbers depend on it
START_FROM = "start_from"  # the weights that the run began with, for as long as the run lasts
RESTART = "restart_optimizer"  # the step from which it went on with fresh optimizers
FINISHED = "finished"  # the outcome of a run that reached its last step


class Part:
    """A part of a run, with its state in a manifest."""

    def check(self, manifest: checkpoint.Manifest) -> None:
        """Raises a `ConfigurationError` if the run can't resume from this checkpoint."""

    def state(self, step: int) -> Mapping[str, Any]:
        """Returns {key: state} for the manifest of a checkpoint at `step`. Call it on every worker."""
        raise NotImplementedError

    def load(self, manifest: checkpoint.Manifest) -> None:
        """Restores this part's state from a manifest."""


class Origin(Part):
    """A checkpoint's origin: configuration, source, tokenizer, number of replicas (local steps), names of averages."""

    def __init__(self, experiment: Experiment, workdir: Workdir, settings: Settings, backend: Backend, input: Input):
        self._workdir, self._settings, self._backend, self._input = workdir, settings, backend, input
        tokenizer = experiment.train_source.tokenizer
        self._tokenizer = tokenizer and tokenizer.identity
        self._replicas = experiment.strategy.num_replicas_in_sync
        self._where_averages_lie = functools.cache(lambda: where_averages_lie(experiment.assembly))

    def check(self, manifest: checkpoint.Manifest) -> None:
        learnt = manifest.extra.get("tokenizer", self._tokenizer)
        if learnt != self._tokenizer:
            raise ConfigurationError(
                f"{manifest.path} was trained on tokens of {shown(learnt)}, but `Experiment.train_source` has tokens "
                f"of {shown(self._tokenizer)}: use the tokenizer of the training, or another `--workdir`."
            )
        round_steps = self._settings.round_steps
        if manifest.step % round_steps:
            raise ConfigurationError(
                f"{manifest.path} is of step {manifest.step}, which is within a round of `Trainer.local_steps` = "
                f"{round_steps}: give a number of local steps that divides {manifest.step}."
            )

    def state(self, step: int) -> Mapping[str, Any]:
        return {
            "configuration": dict(self._workdir.configuration),
            SOURCE: self._input.description,
            **({"tokenizer": self._tokenizer} if self._tokenizer else {}),
            **({REPLICAS: self._replicas} if self._backend.in_rounds else {}),
            **({AVERAGES: averages} if (averages := self._where_averages_lie()) else {}),
        }


class Beginnings(Part):
    """The run's initial weights and restarts of optimizers, recorded in each checkpoint."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {}

    def state(self, step: int) -> Mapping[str, Any]:
        return self.record

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Records `value` under `name`, `START_FROM` or `RESTART`."""
        self.record[name] = dict(value)

    def load(self, manifest: checkpoint.Manifest) -> None:
        self.record = {name: manifest.extra[name] for name in (START_FROM, RESTART) if name in manifest.extra}


class Place(Part):
    """The position in the training data, in addition to the number of examples in the manifest."""

    def __init__(self, input: Input):
        self._input = input

    def state(self, step: int) -> Mapping[str, Any]:
        stream = self._input.kept(step)
        return {"stream": stream} if stream else {}

    def load(self, manifest: checkpoint.Manifest) -> None:
        self._input.load(kept(manifest, "stream"), step=manifest.step, examples=manifest.examples)


class HookStates(Part):
    """The states of the hooks, and if the run may roll back, their states before the first step."""

    def __init__(self, hooks: Sequence[Hook], settings: Settings):
        self._hooks = hooks
        self._begun = self._states() if settings.policies.rolls_back else {}

    def state(self, step: int) -> Mapping[str, Any]:
        states = {name: state for name, state in self._states().items() if state}
        for name, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"`state()` of the hook `{name}` returns {state!r}, which a checkpoint can't store ({error}): use "
                    "numbers, strings, lists and dicts, and `.tolist()` of an array."
                ) from None
        return {"hooks": states} if states else {}

    def load(self, manifest: checkpoint.Manifest) -> None:
        states = kept(manifest, "hooks")
        for name, hook in by_name(self._hooks).items():
            if name in states:
                hook.load(states[name])

    def begin_again(self, manifest: checkpoint.Manifest) -> None:
        """Resets hooks without state in this manifest to their state before the first step."""
        for name, hook in by_name(self._hooks).items():
            if name in self._begun and name not in kept(manifest, "hooks"):
                hook.load(self._begun[name])

    def _states(self) -> dict[str, Any]:
        return {name: hook.state() for name, hook in by_name(self._hooks).items()}


class PassedOver(Part):
    """The numbers of consecutive skipped steps and of rollbacks."""

    def __init__(self, skipping: Skipping | None):
        self.skipping, self.rollbacks = skipping, 0

    def rolled_back(self, before: int) -> None:
        """Counts a rollback. `before` is the number of rollbacks before the restore."""
        self.rollbacks = max(before, self.rollbacks) + 1

    def state(self, step: int) -> Mapping[str, Any]:
        found = self.skipping.state() if self.skipping else {}
        found |= {"rollbacks": self.rollbacks} if self.rollbacks else {}
        return {"passed_over": found} if found else {}

    def load(self, manifest: checkpoint.Manifest) -> None:
        found = kept(manifest, "passed_over")
        self.rollbacks = found.get("rollbacks", 0)
        if self.skipping:
            self.skipping.load(found)


class Ending(Part):
    """The last reported metrics, and the outcome of the run.

    `stopped` is a hook's reason for ending the run early. `reported` holds the last metrics by name. `complete` is True
    once they include the metrics at the run's end. `measured` is (step, the metrics reported at that step).
    """

    def __init__(self, workdir: Workdir, settings: Settings):
        self._workdir, self._settings = workdir, settings
        self.stopped: str | None = None
        self.reported: dict[str, float] = {}
        self.complete = False
        self.measured: tuple[int, dict[str, float]] = (0, {})

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Records metrics reported at `step`."""
        at, before = self.measured
        self.measured = step, {**(before if step == at else {}), **figures}
        self.reported |= figures

    def stop(self, reason: str | None) -> None:
        """Ends the run. `reason` is recorded."""
        self.stopped = reason

    def settle(self, step: int) -> None:
        """Marks the metrics reported by `step` as complete if the run is over then."""
        self.complete = self.is_over(step)

    def forget(self, step: int) -> None:
        """Drops the metrics measured at `step`: the run no longer has the weights that they describe."""
        self.measured = step, {}

    def is_over(self, step: int) -> bool:
        """Returns whether the run is over after `step` steps."""
        return step >= self._settings.steps or self.stopped is not None

    def state(self, step: int) -> Mapping[str, Any]:
        hooks = self._given_hooks()
        figures = {name: x if math.isfinite(x) else None for name, x in self.reported.items()}  # as JSON holds them
        found: dict[str, Any] = {"reported": {"figures": figures, "complete": self.complete, "hooks": hooks}}
        if self.stopped is not None:
            found["stop"] = {"reason": self.stopped, "steps": self._settings.steps, "hooks": hooks}
        return found

    def load(self, manifest: checkpoint.Manifest) -> None:
        """Restores the outcome. A run that a hook stopped stays over, unless given more steps or other hooks."""
        self.stopped, self.reported, self.complete = None, {}, False
        self.measured = manifest.step, dict(checkpoint.kept_of(manifest.extra).get("measured", {}))
        stop, reported = kept(manifest, "stop"), kept(manifest, "reported")
        if stop and stop.get("hooks") == self._given_hooks() and stop["steps"] >= self._settings.steps:
            self.stopped = stop["reason"]
        if reported and reported.get("hooks") == self._given_hooks():  # other hooks haven't reported yet
            self.reported = {name: math.nan if x is None else x for name, x in reported["figures"].items()}
            self.complete = self.is_over(manifest.step) and reported["complete"]

    def _given_hooks(self) -> list[str]:
        bindings = sorted(f"{name} = {value}" for name, value in self._workdir.hooks.items())
        return [*by_name(self._settings.hooks), *bindings]


def kept(manifest: checkpoint.Manifest, key: str) -> dict[str, Any]:
    """Returns a manifest's dictionary under a key; empty if a custom loop stored something else there."""
    value = manifest.extra.get(key)
    return value if isinstance(value, dict) else {}
