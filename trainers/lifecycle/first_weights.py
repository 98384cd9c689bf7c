"""Initial weights of a training run: random, from another run, or from the run's newest checkpoint."""

from typing import NamedTuple

from core.checkpoint import Manifest
from core.errors import ConfigurationError
from core.weights import begin_with
from trainers.loop.run_parts import REPLICAS, RESTART, START_FROM
from trainers.trainer import Trainer


class Beginning(NamedTuple):
    """`lines` to print about how training begins; `to_save`, whether to save a checkpoint before the first step.

    This checkpoint makes the start final: the run no longer needs another run's weights, and a repeated command doesn't
    restart the optimizer twice.
    """

    lines: list[str]
    to_save: bool


def begin(trainer: Trainer, manifest: Manifest | None, *, restart_optimizer: bool = False) -> Beginning:
    """Restores the newest checkpoint, `manifest`, or else sets the initial weights; returns a `Beginning`."""
    if manifest is None:
        if restart_optimizer:
            raise ConfigurationError(
                f"`--restart_optimizer` is for resuming a run, but `{trainer.workdir.checkpoints}` has no "
                "checkpoint: remove the flag, or give the run's folder with `--workdir=DIR`."
            )
        line = warm_start(trainer)
        return Beginning([line] if line else [], to_save=line is not None)
    restarted = manifest.extra.get(RESTART)
    restarts = restart_optimizer and restarted is None
    same_figures = trainer.state.restore(manifest, optimizers=not restarts)
    if restarts and trainer.state.finished:
        raise ConfigurationError(
            f"`--restart_optimizer` is for resuming a run, but that in `{trainer.workdir.named}` has ended "
            f"({trainer.state.outcome}) with `Trainer.steps = {trainer.steps}`: increase it, or remove the flag."
        )
    lines = [f"resuming from step {trainer.step} (`{manifest.path.name}`)"]
    start = trainer.experiment.start_from
    if start is not None and START_FROM not in trainer.state.beginnings.record:
        lines.append(
            f"Warning: `Experiment.start_from` has no effect on a run that is at step {trainer.step}: only a new one "
            f"starts from `{start.path}`, in another `--workdir`"
        )
    before, now = manifest.extra.get(REPLICAS), trainer.train_step.exchange.replicas
    if before not in (None, now):
        lines.append(
            f"{before} replicas took the local steps before, {now} take them now: the weights are bit-identical, "
            "but results differ from here"
        )
    if not same_figures:
        lines.append("the task's metrics have changed: the current metric line starts from zero")
    to_save = restarts and trainer.state.go_on_with_fresh_optimizers(manifest)
    if restarts:
        lines.append(
            f"`--restart_optimizer`: from step {trainer.step} on with a fresh optimizer, whose schedules count from 0"
        )
    elif restarted is not None and restart_optimizer:
        lines.append(f"`--restart_optimizer` was applied at step {restarted['step']}, and isn't repeated")
    return Beginning(lines, to_save)


def warm_start(trainer: Trainer) -> str | None:
    """Initialises a new run with the weights of `Experiment.start_from`; returns a line to print, or None if unset.

    Optimizer state is new: averaged weights, and the weights at the start of a round of local steps, are set to the
    loaded weights.
    """
    start = trainer.experiment.start_from
    if start is None:
        return None
    begun = begin_with(start, trainer.experiment.task)
    own = str(begun.record["sha256"])
    if trainer.agreement.first_text(own) != own:
        raise ConfigurationError(
            f"`Experiment.start_from` is `{start.path}`, where this worker found other weights than the first worker: "
            "give a path that all workers share, or one of the run's `checkpoints/step-*`."
        )
    trainer.state.restart_optimizers()
    trainer.state.beginnings.note(START_FROM, begun.record)
    return begun.line
