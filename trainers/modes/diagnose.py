"""`--mode=diagnose`: are the devices used well, and if not, why? Measures, judges, tries what could help."""

from core.errors import ConfigurationError
from trainers.performance.diagnose.diagnosis import Diagnosis
from trainers.performance.rehearsal import in_a_scratch_folder
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Prints the results and writes them to `diagnosis.json`; the trained weights are discarded."""
    with in_a_scratch_folder(session) as folder:
        trainer = session.trainer()
        _refuse_what_has_no_parts(trainer)
        Diagnosis(trainer).run(folder)
    return 0


def _refuse_what_has_no_parts(trainer: Trainer) -> None:
    """Raises an error for steps that can't be split into parts."""
    backend = trainer.train_step.backend
    if not backend.separable:
        raise ConfigurationError(
            "`--mode=diagnose` takes apart the steps of replicas that meet in each of them, and not those "
            f"{backend.how}: diagnose without, and look at `examples_per_second` in the metric lines of both."
        )
