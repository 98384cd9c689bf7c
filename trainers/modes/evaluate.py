"""`--mode=evaluate`: the newest checkpoint of the workdir on `Experiment.eval_source`."""

from core.errors import CheckpointError
from core.telemetry import Console, Telemetry
from trainers.session import Session


def run(session: Session) -> int:
    """Prints one line of figures."""
    trainer = session.trainer()
    manifest = session.newest_checkpoint()
    if manifest is None:
        raise CheckpointError(
            f"there is no checkpoint in `{session.workdir.checkpoints}`: train first, with the same command and "
            "`--mode=train`, or name the run's folder with `--workdir=DIR`."
        )
    trainer.restore(manifest)
    trainer.telemetry = Telemetry([Console(total_steps=manifest.step)])
    trainer.evaluate()
    return 0
