"""`--mode=diagnose`: are the devices used well, and if not, why? Measures, judges, tries what could help."""

import os
import shutil

from core.disk import unfinished_folder
from core.errors import ConfigurationError
from trainers.diagnose.diagnosis import Diagnosis
from trainers.session import Session
from trainers.trainer import Trainer
from trainers.workdir import Workdir


def run(session: Session) -> int:
    """Prints what it found and writes it as `diagnosis.json`; what it trains goes nowhere."""
    folder = session.workdir
    folder.create()
    scratch = unfinished_folder(folder.path, os.getpid())  # of a process that was killed, a run removes it
    session.workdir = Workdir(scratch)
    try:
        session.workdir.create()
        trainer = session.trainer()
        _refuse_what_has_no_parts(trainer)
        Diagnosis(trainer).run(folder.path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def _refuse_what_has_no_parts(trainer: Trainer) -> None:
    """Refuses steps that can't be taken apart."""
    exchange = trainer.train_step.exchange
    if trainer.settings.local_steps or exchange.on_mesh or exchange.remote:
        how = "by `Trainer.local_steps`" if trainer.settings.local_steps else "on a mesh"
        how = "by parameter servers" if exchange.remote else how
        raise ConfigurationError(
            f"`--mode=diagnose` takes apart the steps of replicas that meet in each of them, and not those {how}: "
            "diagnose without, and look at `examples_per_second` in the metric lines of both."
        )
