"""`--eager`: takes one step without tracing, the first of a run or any other, and writes nothing."""

from core.checkpoint import Manifest
from core.engine import ALL_WELL
from core.errors import CheckpointError, ConfigurationError
from trainers.lifecycle.train_to_end import warm_start
from trainers.loop.bad_step import explain_bad_step
from trainers.replay.repeat_steps import pass_steps
from trainers.session import Session
from trainers.trainer import Trainer


def take_eager_step(session: Session) -> int:
    """Takes the step `--step`, or the first step, without tracing, and prints the step's metrics.

    Steps between the newest earlier checkpoint and `--step` are trained as usual, but not saved.
    """
    step = session.flags.step
    trainer = _new_trainer(session) if step is None else _trainer_at(session, step)
    first = trainer.step
    figures = eager_step(trainer)
    taken = (
        "one step" if step is None else f"step {first}" if trainer.step == first + 1 else f"the round of step {step}"
    )
    print(f"{taken}, not traced and not saved: " + ", ".join(f"{name} {x:.6g}" for name, x in figures.items()))
    return 0


def eager_step(trainer: Trainer) -> dict[str, float]:
    """Takes one step (or round) without tracing: `print` and breakpoints work in step functions."""
    stacked, count = next(trainer.input.chunks_from(trainer.step)), trainer.settings.round_steps
    trainer.take_steps(stacked, count, run=trainer.chunk.python_function)
    if (bad_step := int(trainer.progress.bad_step)) != ALL_WELL:
        raise explain_bad_step(trainer.train_step, trainer.input, bad_step)
    return trainer.figures()


def _new_trainer(session: Session) -> Trainer:
    trainer = session.trainer(eagerly=True)
    warm_start(trainer)
    return trainer


def _trainer_at(session: Session, step: int) -> Trainer:
    """Returns a trainer in the state before `step`, or before the round of local steps that contains `step`."""
    manifest = _checkpoint_before(session, step)
    began = manifest.step if manifest else 0
    trainer = session.trainer(eagerly=began == step)
    _ = trainer.chunk.python_function  # raises an error with parameter servers, before any step
    if step >= trainer.steps:
        raise ConfigurationError(
            f"`--step` is {step}, but the run has {trainer.steps} steps: give a step from 0 to {trainer.steps - 1}."
        )
    if manifest:
        trainer.state.restore(manifest)
        print(f"restored step {trainer.step} (`{manifest.path.name}`)", flush=True)
    else:
        warm_start(trainer)
    pass_steps(trainer, step - step % trainer.settings.round_steps)
    trainer.progress.take_sums()  # the metrics of this step alone
    return trainer


def _checkpoint_before(session: Session, step: int) -> Manifest | None:
    manifest = session.newest_checkpoint(up_to=step)
    if manifest is None and step:
        raise CheckpointError(
            f"`--step` is {step}, but `{session.workdir.checkpoints}` holds no checkpoint of that step or one before "
            "it (`Trainer.keep_checkpoints` limits their number): name the run's folder with `--workdir=DIR`, or "
            "train first, with a `Trainer.checkpoint_every` of at most this step."
        )
    return manifest
