"""`--mode=evaluate`: the newest checkpoint of the workdir on `Experiment.eval_source`."""

from core.telemetry import Console, Telemetry
from trainers.hung import ending_where_it_hangs
from trainers.session import Session


def run(session: Session) -> int:
    """Prints one line of figures."""
    trainer = session.trainer()
    manifest = session.required_checkpoint()
    trainer.state.restore(manifest)
    trainer.telemetry = Telemetry([Console(total_steps=manifest.step)])
    with ending_where_it_hangs(trainer):
        trainer.watchdog.begin("the evaluation")
        trainer.evaluate()
    return 0
