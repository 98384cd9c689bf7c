"""`--mode=replay`: repeats the step of a capsule eagerly, and names its first non-finite value."""

from pathlib import Path

import tensorflow as tf

from core.arguments import listed
from core.cluster import is_chief
from core.distribution import one_device
from core.engine import TrainStep, assemble
from core.errors import ConfigurationError
from core.module import named_modules
from core.task import Batch
from trainers.replay.capsule.batch import read_batch
from trainers.replay.capsule.find import Finding, find_bad
from trainers.replay.capsule.folder import Capsule, read_capsule
from trainers.replay.capsule.leave import environment
from trainers.replay.capsule.report import report
from trainers.replay.capsule.trail import Trail
from trainers.replay.repeat_steps import come_before_bad_step
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Trains up to the step as the run did, repeats it on one device with an operation trace, and prints the result.

    Returns the exit code of the original, failed run, or 0 if the replayed step is finite.
    """
    capsule = read_capsule(Path(session.flags.capsule))
    trainer = session.trainer(step=capsule.step)
    backend = trainer.train_step.backend
    if not backend.steps_together:
        raise ConfigurationError(
            f"`--mode=replay` repeats steps in which all replicas synchronize; {backend.how} they don't. Leave "
            "out the `--gin_file` or `--gin_param` that sets this."
        )
    session.check_same(capsule.configuration, trainer)
    manifest = session.newest_checkpoint(up_to=capsule.step) if capsule.checkpoint else None
    step = come_before_bad_step(trainer, manifest, capsule.step)
    finding = None
    if is_chief():
        now = environment()
        for name, then in capsule.environment.items():
            if now.get(name) != then:
                print(f"note: the run had {name} {then}, and here it is {now.get(name)}: rounding may differ")
        began = f"`{manifest.path.name}`" if manifest else "the beginning"
        print(f"step {step} of {trainer.steps}, replayed from {began}", flush=True)
        finding = _watched(trainer, _batch(trainer, capsule, session.workdir.path, step), step)
        print(report(finding, trainer, capsule, step), flush=True)
    return capsule.exit_code if trainer.agreement.any_worker(finding is not None) else 0


def _watched(trainer: Trainer, batch: Batch, step: int) -> Finding | None:
    """Repeats `step` with a copy of the task on the CPU, so that sharded variables are on one device."""
    experiment, settings = trainer.experiment, trainer.settings
    assembly = assemble(experiment.make_host_task, one_device("CPU:0"))
    for path, variable in assembly.variables.items():
        variable.assign(experiment.variables[path].numpy())
    spec = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in batch.items()}
    train_step = TrainStep(assembly, spec, seed=experiment.seed, steps=settings.steps, precision=settings.precision)
    for path, variable in train_step.scale_variables.items():
        variable.assign(trainer.train_step.scale_variables[path].numpy())
    variables = {path.removeprefix("task/"): variable for path, variable in assembly.variables.items()}
    return find_bad(train_step, batch, step, Trail(variables, named_modules(assembly.task)))


def _batch(trainer: Trainer, capsule: Capsule, path: Path, step: int) -> Batch:
    """Returns the batch of `step`: the recorded batch for the capsule's own step, else the source's batch."""
    now = trainer.input.batch_of(step)
    if step != capsule.step:
        return now
    kept = {key: tf.constant(x) for key, x in read_batch(path).items()}
    if {key: (x.shape, x.dtype) for key, x in kept.items()} != {key: (x.shape, x.dtype) for key, x in now.items()}:
        raise ConfigurationError(
            f"the capsule `{path}` has the features {listed(kept)}, but the source now returns {listed(now)}, or the "
            "same features with other shapes: use the code that the run had."
        )
    if any(kept[key].numpy().tobytes() != x.numpy().tobytes() for key, x in now.items()):
        print("note: the source now returns other examples for this step: the capsule's examples are used")
    return kept
