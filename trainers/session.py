"""The context of every mode: flags, configuration, and the objects built from them."""

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
from absl.flags import FlagValues

from core import checkpoint
from core.cluster import joined, must_agree
from core.cluster.topology import ServedCluster, cluster_from_environment
from core.distribution import STRATEGIES
from core.engine.inspect_phase import untraced
from core.errors import CheckpointError, ConfigurationError, TapeloopError
from trainers import configurables as configurables  # registers them
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import Configuration
from trainers.gin_audit.identity import difference, identity, operative_text, read_identity
from trainers.lifecycle.start import Configured, Start, newest_checkpoint, record_failed_start
from trainers.loop.run_state import RunContext
from trainers.options.checkpoints import chosen_checkpoint
from trainers.process.signals import Preemption
from trainers.process.watchdog import Limits, ending_where_set_up_hangs
from trainers.settings import Settings, given_peak
from trainers.trainer import Trainer
from trainers.workdir import Workdir

# Settings that may change when a run resumes: devices, duration, intervals.
NOT_IDENTITY = (
    "Experiment.strategy",
    "Experiment.placements",
    "Experiment.one_device",
    "Experiment.recompute",  # changes no number
    "Experiment.deterministic",
    "Experiment.eval_sources",  # evaluations change no weight
    "Gan.*_placement",  # placements were the task's own once
    "Gan.one_device",
    *(f"{name}.*" for name in STRATEGIES),
    "Trainer.steps",
    "Trainer.memory_budget",  # what it chooses is kept in the workdir
    "Trainer.chunk_steps",
    "Trainer.parallel_calls",
    "Trainer.*_every",
    "Trainer.checkpoint_every_minutes",
    "Trainer.keep_checkpoints",
    "Trainer.keep_best",
    "Trainer.section_deadline",
    "Trainer.section_deadlines",
    "Trainer.on_nonfinite",
    "Trainer.on_spike",
    "Trainer.spike_factor",
    "Trainer.max_skips",
    "Trainer.max_rollbacks",
    "Trainer.hooks",
    "Trainer.profile",
    "Evaluator.*",
    "DryRun.*",
    "stream.replay",
)


# Modes with steps, which `Trainer.memory_budget` changes.
TRAINING = ("train", "tune", "find_rate", "diagnose", "replay", "summary")


class Session:
    """One call of the command, with its flags, configuration and workdir."""

    def __init__(self, flags: FlagValues, configuration: Configuration, workdir: Path, preemption: Preemption):
        self.flags, self.configuration, self.preemption = flags, configuration, preemption
        self.more_hooks: Sequence[hooks.Hook] = []  # of a training that is kept in object storage
        self.write_in(workdir)

    def write_in(self, folder: Path) -> None:
        """Writes the files of the run into `folder` from now on."""
        self.workdir = Workdir(folder)

    def bind(self, required: Sequence[Any]) -> None:
        """Passes the bindings to gin, after all checks that are possible before anything is built."""
        roots = [Experiment, Settings, Evaluator, given_peak]
        self.configuration.bind(roots, required=required, register=hooks.register)
        for override in self.configuration.overrides:
            print(f"override: {override}", flush=True)
        for text in self.configuration.preferred:
            print(text, flush=True)

    def trainer(
        self,
        *,
        step: int | None = None,
        eagerly: bool = False,
        bound: Callable[[], object] = lambda: None,
        more_hooks: Sequence[hooks.Hook] = (),
    ) -> Trainer:
        """Makes the experiment, and the trainer of the stage at `step`; nothing is written yet.

        `None` is the step of the newest checkpoint. With `eagerly`, for a session that takes only eager steps, nothing
        is traced. `bound` is called when gin has the bindings, before anything is made.
        """
        self.bind(required=[Experiment, Settings])
        bound()
        must_agree(checkpoint=self.workdir.newest_name())  # separate folders would differ
        failed = functools.partial(record_failed_start, self.workdir) if self.flags.mode == "train" else None
        watched = ending_where_set_up_hangs(self.workdir, _limits_of_set_up(), failed)
        with watched, untraced() if eagerly else contextlib.nullcontext():
            experiment, settings = Experiment(), Settings()
            more: dict[str, Any] = {}
            if settings.memory_budget is not None and self.flags.mode in TRAINING:
                from trainers.dry_run.budget import fit_budget

                settings, more["before_tracing"] = fit_budget(experiment, settings, self.workdir)
            trainer = Trainer(
                experiment,
                self.workdir,
                settings,
                self.preemption,
                step=step_of(settings, self.workdir) if step is None else step,
                leave_capsule=leave_capsule,
                more_hooks=more_hooks,
                **more,
            )
        self._check_worker_strategy()
        self.configuration.check_consumed()
        return trainer

    def _check_worker_strategy(self) -> None:
        """Raises an error for a single-process strategy among several processes, which would share one workdir."""
        cluster = cluster_from_environment()
        if joined() is None and cluster is not None and len(cluster.workers) > 1:
            served = isinstance(cluster, ServedCluster)
            raise ConfigurationError(
                f"this process was started as {cluster.name(cluster.index)} of {len(cluster.workers)} processes, but "
                "its strategy is for one: add `--gin_file=configs/runtime/"
                f"{'parameter_server.gin`' if served else 'multi_worker.gin` (or `mesh.gin`)'}, or unset `TF_CONFIG`."
            )

    def start(self, trainer: Trainer) -> Start:
        """Returns the `Start` of a training run with this configuration."""
        asking, may_change = trainer.train_step.asks_progress, changeable(trainer)
        own, without_hooks = identity(may_change), identity(["Trainer.hooks"])

        def note(before: Mapping[str, str]) -> str:
            if not asking or before.get("Trainer.steps") == own["Trainer.steps"]:
                return ""
            return f"\n(`Trainer.steps` counts here, because phase `{asking[0]}` asks for `rng.progress`)"

        configured = Configured(
            identity=own,
            hooks={name: x for name, x in identity().items() if name not in without_hooks},
            read=lambda saved: read_identity(saved, own, may_change),
            given=lambda: self.configuration.given,
            operative=operative_text,
            note=note,
            remedy="Start this one elsewhere with `--workdir=DIR`, or go on from the other's checkpoint with "
            "`--allow_config_change`.",
            source=trainer.input.description,
            precision=trainer.settings.precision,
        )
        flags = self.flags
        return Start(
            self.workdir, configured, allow_change=flags.allow_config_change, restart_optimizer=flags.restart_optimizer
        )

    def check_same(self, configuration: Mapping[str, str], trainer: Trainer) -> None:
        """Raises a `ConfigurationError` if this session's configuration differs from `configuration`, the run's."""
        if changes := _changes(configuration, trainer):
            raise ConfigurationError(
                f"`{self.workdir.named}` belongs to a run with another configuration:\n{changes}\nLeave out "
                "the `--gin_file` or `--gin_param` that changes it, or use the code that the run had."
            )

    def changes(self, found: checkpoint.Manifest, trainer: Trainer) -> str:
        """Returns the differences between a checkpoint's configuration and this one, as text."""
        saved = found.extra.get("configuration")
        return _changes(saved, trainer) if isinstance(saved, dict) else "the checkpoint doesn't say which"

    def changes_of_experiment(self, found: checkpoint.Manifest) -> str:
        """Returns the differences in the experiment itself, as text; optimizers and the like don't count."""
        without = [*NOT_IDENTITY, "Experiment.start_from", "*.optimizer", "*_optimizer"]
        own = identity(without)
        calls = {key.rpartition(".")[0] for key in own}
        saved = read_identity(found.extra.get("configuration") or {}, own, without)
        return difference({key: x for key, x in saved.items() if key.rpartition(".")[0] in calls}, own)

    def newest_checkpoint(self, up_to: int | None = None) -> checkpoint.Manifest | None:
        """Returns the newest complete checkpoint of the workdir, at most at step `up_to`."""
        return newest_checkpoint(self.workdir, up_to)

    def required_checkpoint(self) -> checkpoint.Manifest:
        """Returns the checkpoint that `--checkpoint` chooses. Raises a `CheckpointError` if the workdir has none."""
        manifest = self.newest_checkpoint()
        if manifest is None:
            raise CheckpointError(
                f"there is no checkpoint in `{self.workdir.checkpoints}`: train first, with the same command and "
                "`--mode=train`, or name the run's folder with `--workdir=DIR`."
            )
        return chosen_checkpoint(self.workdir, self.flags.checkpoint, manifest)


def step_of(settings: Settings, workdir: Workdir) -> int:
    """Returns the step of the newest checkpoint, whose stage a run resumes; 0 if the run has one stage."""
    found = newest_checkpoint(workdir) if settings.stages else None
    return found.step if found else 0


def leave_capsule(context: RunContext, error: TapeloopError, step: int) -> TapeloopError:
    """Writes the capsule (failure snapshot) of a bad step. Imports the code for capsules only then."""
    from trainers.replay.capsule.leave import leaving_capsule

    return leaving_capsule(context, error, step)


def _limits_of_set_up() -> Limits:
    """Returns the deadlines that gin binds for the trainer, before the trainer and its other settings are made."""
    bound = gin.get_bindings(Settings, resolve_references=False)
    found = {name: copy.deepcopy(bound[name]) for name in ("section_deadline", "section_deadlines") if name in bound}
    return Limits(found.get("section_deadline", Limits.general), found.get("section_deadlines") or {})


def _changes(configuration: Mapping[str, str], trainer: Trainer) -> str:
    own = identity(may_change := changeable(trainer))
    return difference(read_identity(configuration, own, may_change), own)


def changeable(trainer: Trainer) -> list[str]:
    """Lists settings that may change when a run resumes; leaves out `Trainer.steps` if the task uses it."""
    asking = trainer.train_step.asks_progress
    return [name for name in NOT_IDENTITY if not (asking and name == "Trainer.steps")]
