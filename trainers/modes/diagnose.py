"""`--mode=diagnose`: are the devices used well, and if not, why? Measures, judges, tries what could help."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from core.disk import write_whole
from core.errors import ConfigurationError
from trainers.diagnose.bench import Bench
from trainers.diagnose.points import Point, measured
from trainers.diagnose.remedies import Remedy, Tried
from trainers.diagnose.tell import as_json, parts_table, tried_text
from trainers.diagnose.verdict import judge
from trainers.session import Session
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir, json_text

LONGEST_CHUNK_SECONDS = 2.0  # chunks of slower steps are cut, or measuring would take for ever
MEASURED_SECONDS = 8.0  # about what a point takes beside tracing
TRACES = 6  # of about one step each, for a point


def run(session: Session) -> int:
    """Prints what it found and writes it as `diagnosis.json`; what it trains goes nowhere."""
    folder = session.workdir
    folder.create()
    with tempfile.TemporaryDirectory(prefix=".diagnosis-", dir=folder.path) as scratch:
        session.workdir = Workdir(Path(scratch) / "run")
        session.workdir.create()
        diagnosis = Diagnosis(session.trainer())
        diagnosis.run(folder.path / "diagnosis.json")
    return 0


class Diagnosis:
    """What is measured, in its order."""

    def __init__(self, trainer: Trainer):
        _refuse_what_has_no_parts(trainer)
        self.configured = trainer
        self.bench = _with_short_chunks(Bench(trainer))

    def run(self, path: Path) -> None:
        """Measures, tells, and keeps it in `path`."""
        bench, settings = self.bench, self.bench.trainer.settings
        seconds = 3 * (TRACES * bench.traced / 2 + MEASURED_SECONDS)
        console = Console(highlight=False)
        console.print(f"measuring takes about {seconds:.0f} s, and nothing that it trains is kept")
        point = measured(bench, bench.hooks())
        console.print(parts_table([point]))
        verdict = judge(
            point.times,
            settings,
            chunk_steps=bench.chunk_steps,
            source=bench.trainer.input.source.name,
            fixed=self._fixed(),
        )
        tried = [self._tried(remedy, point) for remedy in verdict.remedies]
        console.print(verdict.sentence, soft_wrap=True)
        for each in tried:
            console.print(tried_text(each), soft_wrap=True)
        write_whole({path: json_text(as_json([point], verdict, tried)).encode()})
        console.print(f"all of it is in `{path}`", soft_wrap=True)

    def _fixed(self) -> float:
        """Returns how much of computing is the same for any batch, in seconds a step: measures another one for it."""
        settings = self.bench.trainer.settings
        size, replicas = settings.global_batch_size, self.bench.trainer.train_step.exchange.replicas
        other = size // 4 if size % (4 * settings.microbatches * replicas) == 0 else 4 * size
        here, there = self.bench.computing(), self._other(global_batch_size=other).computing()
        a_row = (there - here) / (other - size)
        return min(max(here - a_row * size, 0.0), here)

    def _tried(self, remedy: Remedy, before: Point) -> Tried:
        bench = self._other(**remedy.settings)
        for hook in bench.trainer.hooks:
            if type(hook).__name__ == remedy.hook:
                hook.every = remedy.every
        step = bench.training()[0] + sum(bench.hooks().values())
        return Tried(remedy, before.examples_per_second, bench.trainer.settings.global_batch_size / step)

    def _other(self, **changes: Any) -> Bench:
        trainer = self.bench.trainer
        changed: dict[str, Any] = {"chunk_steps": self.bench.chunk_steps, **changes}
        return Bench(_trainer_like(trainer, dataclasses.replace(trainer.settings, **changed)))


def _with_short_chunks(bench: Bench) -> Bench:
    """Returns the bench, or one like it whose chunks don't take too long."""
    most = max(1, int(LONGEST_CHUNK_SECONDS / bench.seconds_a_step))
    if bench.chunk_steps <= most:
        return bench
    steps = max(n for n in range(1, most + 1) if bench.chunk_steps % n == 0)
    return Bench(_trainer_like(bench.trainer, dataclasses.replace(bench.trainer.settings, chunk_steps=steps)))


def _trainer_like(trainer: Trainer, settings: Settings) -> Trainer:
    """Makes a trainer of the same experiment with other settings."""
    return Trainer(trainer.experiment, trainer.workdir, settings)


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
