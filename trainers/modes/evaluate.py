"""`--mode=evaluate`: the newest checkpoint of the workdir on `Experiment.eval_source`."""

from core import checkpoint
from core.errors import CheckpointError, ConfigurationError
from core.telemetry import Console
from trainers.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.session import Session


def run(session: Session) -> int:
    """Prints one line of figures."""
    session.bind(required=[Experiment])
    experiment = Experiment()
    if experiment.eval_source is None:
        raise ConfigurationError("there is nothing to evaluate on: bind `Experiment.eval_source`.")
    manifest = session.newest_checkpoint()
    if manifest is None:
        raise CheckpointError(
            f"there is no checkpoint in `{session.workdir.checkpoints}`: train first, with the same command and "
            "`--mode=train`, or name the run's folder with `--workdir=DIR`."
        )
    checkpoint.restore(manifest, experiment.variables, partial=["figures/*"])
    figures = Evaluator(experiment, experiment.eval_source).evaluate()
    Console(total_steps=manifest.step).write(manifest.step, "eval", figures)
    return 0
