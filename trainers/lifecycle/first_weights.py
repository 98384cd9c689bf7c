"""What a training begins with: random weights, those of another run, or a checkpoint of its own."""

from typing import NamedTuple

from core.checkpoint import Manifest
from core.errors import ConfigurationError
from core.weights import begin_with
from trainers.loop.run_parts import REPLICAS, RESTART, START_FROM
from trainers.trainer import Trainer


class Beginning(NamedTuple):
    """Says in lines what a training begins with, and whether that is to be saved before its first step.

    What the lines say is then done: the run no longer needs the weights of another, and a scheduler that repeats its
    command restarts no optimizer twice.
    """

    lines: list[str]
    to_save: bool


def begin(trainer: Trainer, manifest: Manifest | None, *, restart_optimizer: bool = False) -> Beginning:
    """Brings a training to where it begins: to its newest checkpoint, if it has one."""
    if manifest is None:
        if restart_optimizer:
            raise ConfigurationError(
                f"`--restart_optimizer` is for a run that goes on, but `{trainer.workdir.checkpoints}` holds no "
                "checkpoint: leave it out, or name the run's folder with `--workdir=DIR`."
            )
        line = warm_start(trainer)
        return Beginning([line] if line else [], to_save=line is not None)
    restarted = manifest.extra.get(RESTART)
    restarts = restart_optimizer and restarted is None
    same_figures = trainer.state.restore(manifest, optimizers=not restarts)
    if restarts and trainer.state.finished:
        raise ConfigurationError(
            f"`--restart_optimizer` is for a run that goes on, but that in `{trainer.workdir.named}` is over "
            f"({trainer.state.outcome}) with `Trainer.steps = {trainer.steps}`: give it more, or leave the flag out."
        )
    lines = [f"going on from step {trainer.step} (`{manifest.path.name}`)"]
    start = trainer.experiment.start_from
    if start is not None and START_FROM not in trainer.state.beginnings.record:
        lines.append(
            f"Warning: `Experiment.start_from` has no effect on a run that is at step {trainer.step}: only a new one "
            f"begins with `{start.path}`, in another `--workdir`"
        )
    before, now = manifest.extra.get(REPLICAS), trainer.train_step.exchange.replicas
    if before not in (None, now):
        lines.append(
            f"{before} replicas took its local steps, and now {now} do: what was learnt is the same to the bit, "
            "but the numbers change from here"
        )
    if not same_figures:
        lines.append("the figures of the task have changed: the metric line in flight starts anew")
    to_save = restarts and trainer.state.go_on_with_fresh_optimizers(manifest)
    if restarts:
        lines.append(
            f"`--restart_optimizer`: from step {trainer.step} on with a fresh optimizer, whose schedules count from 0"
        )
    elif restarted is not None and restart_optimizer:
        lines.append(f"`--restart_optimizer` has done its work at step {restarted['step']}, and isn't done again")
    return Beginning(lines, to_save)


def warm_start(trainer: Trainer) -> str | None:
    """Gives a new run the weights that `Experiment.start_from` names; returns a line that says so.

    Optimizers begin at these weights as at any: their averages, and what local steps begin a round with, are theirs.
    """
    start = trainer.experiment.start_from
    if start is None:
        return None
    begun = begin_with(start, trainer.experiment.task)
    own = str(begun.record["sha256"])
    if trainer.agreement.first_text(own) != own:
        raise ConfigurationError(
            f"`Experiment.start_from` names `{start.path}`, where this worker found other weights than the first: give "
            "a path that is the same for all workers, or one of the run's `checkpoints/step-*`."
        )
    trainer.state.restart_optimizers()
    trainer.state.beginnings.record[START_FROM] = dict(begun.record)
    return begun.line
