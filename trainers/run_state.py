"""All that a run goes on from, saved and restored as one checkpoint."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from core import checkpoint
from core.distribution import Agreement, MeshStrategy, make_drift_check
from core.engine import Progress
from core.errors import ConfigurationError, NotFiniteError, shown
from core.workers import is_chief, joined
from trainers.diagnosis import REMEDY
from trainers.experiment import Experiment
from trainers.hooks.base import Hook, by_name
from trainers.input import Input
from trainers.settings import Settings
from trainers.workdir import Workdir

# Under which a checkpoint says how many replicas took local steps: the numbers hang on it.
REPLICAS = "replicas"


class RunState:
    """What is learnt, the metric line in flight, the step, the place in the data, what hooks keep and have reported.

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
        input: Input,
        progress: Progress,
        hooks: Sequence[Hook],
    ):
        self.workdir, self.settings, self.input, self.progress, self.hooks = workdir, settings, input, progress, hooks
        self.variables = variables
        tokenizer = experiment.train_source.tokenizer
        self.tokenizer = tokenizer and tokenizer.identity
        self.check_replicas = make_drift_check(experiment.strategy, self.variables)
        self.peers = peers_of(experiment.strategy)
        self.replicas = experiment.strategy.num_replicas_in_sync
        self.step = 0
        self.stopped: str | None = None
        self.reported: dict[str, float] = {}
        self.complete = False

    @property
    def finished(self) -> bool:
        """Says whether there is no step left to do."""
        return self.step >= self.settings.steps or self.stopped is not None

    @property
    def outcome(self) -> str:
        """Says how a finished run ended."""
        return "finished" if self.stopped is None else f"stopped at step {self.step}: {self.stopped}"

    def save(self, *, warn: Callable[[str], None] = print) -> Path:
        """Saves a checkpoint of this moment; returns where. Every worker calls it; of what is cut each writes parts."""
        self.check_replicas()  # what has drifted apart isn't worth keeping
        for path, variable in self.variables.items():
            if variable.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(variable)):
                raise NotFiniteError(
                    f"after step {self.step}, `{path}` is not finite, though every loss and gradient was: what "
                    f"the step made of them wasn't. Nothing was saved. {REMEDY}"
                )
        if not is_chief() and self.peers.workers == 1:
            return checkpoint.path_of(self.workdir.checkpoints, self.step)
        self.workdir.check_there()
        return checkpoint.save(
            self.workdir.checkpoints,
            {**self.variables, **self.progress.variables},
            step=self.step,
            examples=self.input.examples_before(self.step),
            config_hash=self.workdir.config_hash,
            keep=self.settings.keep_checkpoints,
            warn=warn,
            peers=self.peers,
            extra={
                "configuration": dict(self.workdir.configuration),
                **({"tokenizer": self.tokenizer} if self.tokenizer else {}),
                **({REPLICAS: self.replicas} if self.settings.local_steps else {}),
                **self._kept_by_hooks(),
                "reported": {
                    "figures": _finite(self.reported),
                    "complete": self.complete,
                    "hooks": self._given_hooks(),
                },
                **self._stop_record(),
            },
        )

    def tidy(self, *, warn: Callable[[str], None] = print) -> None:
        """Removes what the last save of a finished run, if it was killed, would have removed: no other one will."""
        if is_chief():
            keep = self.settings.keep_checkpoints
            checkpoint.tidy(self.workdir.checkpoints, step=self.step, keep=keep, warn=warn)

    def restore(self, manifest: checkpoint.Manifest) -> bool:
        """Goes on from a checkpoint; returns whether its metric line in flight goes on as well.

        A run that a hook has stopped is over, unless it is given more steps or other hooks.
        """
        learnt = manifest.extra.get("tokenizer", self.tokenizer)
        if learnt != self.tokenizer:
            raise ConfigurationError(
                f"{manifest.path} learnt tokens of {shown(learnt)}, but those of `Experiment.train_source` are of "
                f"{shown(self.tokenizer)}: give the tokenizer that it was trained with, or another `--workdir`."
            )
        round_steps = self.settings.local_steps or 1
        if manifest.step % round_steps:
            raise ConfigurationError(
                f"{manifest.path} is of step {manifest.step}, which is within a round of `Trainer.local_steps` = "
                f"{round_steps}: give a number that divides it."
            )
        saved = {path: v for path, v in manifest.variables.items() if path.startswith("figures/")}
        live = self.progress.variables
        same = {path: (tuple(v.shape), v.dtype.name) for path, v in live.items()} == {
            path: (v.shape, v.dtype) for path, v in saved.items()
        }
        if same:
            checkpoint.restore(manifest, {**self.variables, **live})
        else:  # the task reports other figures than it did: the line in flight can't be finished
            checkpoint.restore(manifest, self.variables, partial=["figures/*"] if saved else [])
        self.step = manifest.step
        self.input.origin += manifest.examples - self.input.examples_before(manifest.step)
        kept, stop, reported = (_mapping(manifest.extra.get(name)) for name in ("hooks", "stop", "reported"))
        for name, hook in by_name(self.hooks).items():
            if name in kept:
                hook.load(kept[name])
        if stop and stop.get("hooks") == self._given_hooks() and stop["steps"] >= self.settings.steps:
            self.stopped = stop["reason"]
        if reported and reported.get("hooks") == self._given_hooks():  # other hooks have yet to report theirs
            self.reported = {name: math.nan if x is None else x for name, x in reported["figures"].items()}
            self.complete = self.finished and reported["complete"]
        return same

    def _kept_by_hooks(self) -> dict[str, Any]:
        states = {name: state for name, hook in by_name(self.hooks).items() if (state := hook.state())}
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


def peers_of(strategy: tf.distribute.Strategy) -> checkpoint.Peers:
    """Returns which worker this is among those that have to save together: of replicas the chief holds everything."""
    membership = joined()
    if membership is None or not isinstance(strategy, MeshStrategy):
        return checkpoint.Peers()
    return checkpoint.Peers(membership.cluster.index, membership.cluster.size, Agreement(strategy).first_text)


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Returns figures as JSON can hold them: what isn't finite is null, as in `result.json`."""
    return {name: x if math.isfinite(x) else None for name, x in figures.items()}


def _mapping(value: Any) -> dict[str, Any]:
    """Returns what a checkpoint keeps under one name; nothing where a loop of one's own kept something else there."""
    return value if isinstance(value, dict) else {}
