"""What every mode is handed: the flags, the configuration, and the pieces built from them."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl.flags import FlagValues

from core import checkpoint
from core.distribution import STRATEGIES
from core.engine.describe import untraced
from core.errors import CheckpointError, ConfigurationError
from core.workers import is_chief, joined, must_agree
from core.workers.cluster import ServedCluster, cluster_from_environment
from trainers import configurables as configurables  # registers them
from trainers.dry_run.time import given_peak
from trainers.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import Configuration
from trainers.gin_audit.identity import config_hash, difference, identity, operative_text, read_identity
from trainers.hooks.standard import KillAfter
from trainers.preemption import Preemption
from trainers.record import record_start
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

# What may change when a run goes on: where it computes, how long, how often it looks up.
NOT_IDENTITY = (
    "Experiment.strategy",
    "Experiment.placements",
    "Experiment.one_device",
    "Experiment.deterministic",
    "Gan.*_placement",  # placements were the task's own once
    "Gan.one_device",
    *(f"{name}.*" for name in STRATEGIES),
    "Trainer.steps",
    "Trainer.chunk_steps",
    "Trainer.parallel_calls",
    "Trainer.*_every",
    "Trainer.keep_checkpoints",
    "Trainer.section_deadline",
    "Trainer.hooks",
    "Trainer.profile",
    "Evaluator.*",
    "DryRun.*",
)


class Session:
    """One call of the command."""

    def __init__(self, flags: FlagValues, configuration: Configuration, workdir: Path, preemption: Preemption):
        self.flags, self.configuration, self.preemption = flags, configuration, preemption
        self.workdir = Workdir(workdir)
        self.began = False  # once the first chunk of steps is traced

    def bind(self, required: Sequence[Any]) -> None:
        """Hands the bindings to gin, after every check that can be made before anything is built."""
        self.configuration.bind([Experiment, Settings, Evaluator, given_peak], required=required)
        for override in self.configuration.overrides:
            print(f"override: {override}", flush=True)

    def trainer(self, *, eagerly: bool = False) -> Trainer:
        """Makes the experiment and its trainer; nothing is written yet.

        To take steps `eagerly` alone nothing is traced.
        """
        self.bind(required=[Experiment, Settings])
        must_agree(checkpoint=self.workdir.newest_name())  # workers in folders of their own would go on from others
        with untraced() if eagerly else contextlib.nullcontext():
            trainer = Trainer(Experiment(), self.workdir, Settings(), self.preemption)
        self._check_worker_strategy()
        self.configuration.check_consumed()
        if self.flags.kill_after_step is not None:
            trainer.hooks.append(KillAfter(self.flags.kill_after_step))
        return trainer

    def _check_worker_strategy(self) -> None:
        """Refuses a strategy that doesn't know of the other processes: each would be chief of the one workdir."""
        cluster = cluster_from_environment()
        if joined() is None and cluster is not None and len(cluster.workers) > 1:
            served = isinstance(cluster, ServedCluster)
            raise ConfigurationError(
                f"this process was started as {cluster.name(cluster.index)} of {len(cluster.workers)} processes, but "
                "its strategy is for one: add `--gin_file=configs/runtime/"
                f"{'parameter_server.gin`' if served else 'multi_worker.gin` (or `mesh.gin`)'}, or unset `TF_CONFIG`."
            )

    def claim(self, trainer: Trainer) -> checkpoint.Manifest | None:
        """Takes the workdir, unless it holds a run of another configuration; returns its newest checkpoint."""
        asking, may_change = trainer.train_step.asks_progress, _may_change(trainer)
        own, found = identity(may_change), self.newest_checkpoint()
        self.workdir.create()
        if is_chief():
            self.workdir.lock()
        before = own if found is None else self._identity_of(found, own, may_change)
        if before != own:
            changes = difference(before, own)
            if asking and before.get("Trainer.steps") != own["Trainer.steps"]:
                changes += f"\n(`Trainer.steps` counts here, because phase `{asking[0]}` asks for `rng.progress`)"
            if not self.flags.allow_config_change:
                raise ConfigurationError(
                    f"the workdir `{self.workdir.path}` holds a run of another configuration:\n{changes}\nStart this "
                    "one elsewhere with `--workdir=DIR`, or go on from the other's checkpoint with "
                    "`--allow_config_change`."
                )
            print(f"the configuration has changed, as `--allow_config_change` allows:\n{changes}", flush=True)
        self.workdir.configuration, self.workdir.config_hash = own, config_hash(own)
        without_hooks = identity(["Trainer.hooks"])
        self.workdir.hooks = {name: x for name, x in identity().items() if name not in without_hooks}
        return found

    def check_same(self, configuration: Mapping[str, str], trainer: Trainer) -> None:
        """Refuses to do something of a run again by another configuration than that run's."""
        own = identity(may_change := _may_change(trainer))
        before = read_identity(configuration, own, may_change)
        if before != own:
            raise ConfigurationError(
                f"`{self.workdir.path}` is of a run of another configuration:\n{difference(before, own)}\nLeave out "
                "the `--gin_file` or `--gin_param` that changes it, or go back to the code that the run had."
            )

    def _identity_of(
        self, found: checkpoint.Manifest, own: Mapping[str, str], may_change: Sequence[str]
    ) -> Mapping[str, str]:
        saved = found.extra.get("configuration")
        if isinstance(saved, dict) and all(isinstance(value, str) for value in saved.values()):
            return read_identity(saved, own, may_change)
        if not self.flags.allow_config_change:
            raise ConfigurationError(
                f"checkpoint `{found.path}` doesn't say what configuration it is of: a loop of your own has saved it. "
                "Start this run elsewhere with `--workdir=DIR`, or go on from it with `--allow_config_change`."
            )
        return own

    def record(self, step: int) -> None:
        """Records the configuration that goes on from `step`: not before it has come that far."""
        self.began = True
        if is_chief():
            self.workdir.result.unlink(missing_ok=True)  # it tells of a run that ended; this one goes on
            record_start(
                self.workdir,
                step=step,
                given=self.configuration.given,
                operative=operative_text(),
                devices=[device.name for device in tf.config.list_logical_devices()],
            )

    def record_failed_start(self, *, exit_code: int, reason: str) -> None:
        """Records why a start came to nothing, where no result of a run stands that began."""
        cluster = cluster_from_environment()  # which this process may not have come to join
        if cluster is None or cluster.is_chief:
            self.workdir.write_failed_start(exit_code=exit_code, reason=reason)

    def newest_checkpoint(self, up_to: int | None = None) -> checkpoint.Manifest | None:
        """Returns the newest whole checkpoint of the workdir, or of its steps `up_to` one."""

        def warn(text: str) -> None:
            print(f"Warning: {text}", flush=True)

        return checkpoint.newest(self.workdir.checkpoints, warn=warn, up_to=up_to)

    def required_checkpoint(self) -> checkpoint.Manifest:
        """Returns the newest checkpoint, where there is nothing to do without one."""
        manifest = self.newest_checkpoint()
        if manifest is None:
            raise CheckpointError(
                f"there is no checkpoint in `{self.workdir.checkpoints}`: train first, with the same command and "
                "`--mode=train`, or name the run's folder with `--workdir=DIR`."
            )
        return manifest


def _may_change(trainer: Trainer) -> list[str]:
    """Lists what may change when a run goes on; not how many steps there are, where the meaning of one hangs on it."""
    asking = trainer.train_step.asks_progress
    return [name for name in NOT_IDENTITY if not (asking and name == "Trainer.steps")]
