"""`--mode=diagnose`: measures how well devices are used, finds the reason if not, and tries what could help."""

from core.errors import ConfigurationError
from trainers.performance.diagnose.diagnosis import Diagnosis
from trainers.performance.rehearsal import in_a_scratch_folder
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Prints the results and writes them to `diagnosis.json`. The trained weights are discarded."""
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
            f"`--mode=diagnose` measures steps in which all replicas synchronize; {backend.how} they don't. "
            "Diagnose without this setting, and compare `examples_per_second` in the metric lines with and without it."
        )
