"""`--mode=tune`: finds settings that make this configuration faster on this machine, without changing results."""

import dataclasses
import functools
from pathlib import Path

from rich.console import Console

from core.cluster import is_chief
from core.disk import write_whole
from core.errors import ConfigurationError, PreemptedError
from trainers.options.compile import AUTO, OFF
from trainers.performance.rehearsal import agreed, in_a_scratch_folder
from trainers.performance.tune.proposals import Choice
from trainers.performance.tune.search import SEARCH_SECONDS, Row, Search
from trainers.performance.tune.tables import as_json, progress, table, winners
from trainers.performance.tune.trial import Trial
from trainers.session import Session
from trainers.trainer import Trainer
from trainers.workdir import json_text

LONGEST_CHUNK_SECONDS = 0.25  # chunks of slower steps are shortened to limit a turn
FILE = "tune.json"


def run(session: Session) -> int:
    """Prints the tried settings and the gin lines that help, and writes them to `tune.json`. Keeps no weights."""
    with session.preemption.obeyed(), in_a_scratch_folder(session) as folder:
        trainer = session.trainer()
        refuse_what_cannot_be_tried(trainer)
        with session.preemption.granted():
            Tuning(session, trainer, folder).run()
    return 0


class Tuning:
    """Makes the trials of one tuning. Prints and writes their results, even if a signal interrupts the trials."""

    def __init__(self, session: Session, trainer: Trainer, folder: Path):
        self.preemption, self.trainer, self.path = session.preemption, trainer, folder / FILE
        self.console = Console(highlight=False, quiet=not is_chief())
        self._chunk_steps = trainer.input.chunk_steps
        self._search: Search | None = None

    def run(self) -> None:
        """Searches for faster settings, and prints the results, also after an interruption."""
        self.console.print(
            f"trying settings that change no number, for about {SEARCH_SECONDS:.0f} s at most; what it trains is "
            "not kept",
            soft_wrap=True,
        )
        if self.trainer.settings.compile == AUTO:
            self.console.print('`Trainer.compile` is "auto": everything is compared with "off"')
        try:
            self._searched()
        except (PreemptedError, KeyboardInterrupt):
            if self._search:
                self._tell(self._search, complete=False)
            raise

    def _searched(self) -> None:
        automatic = self.trainer.settings.compile == AUTO  # which would be found out first
        configured = self._make(Choice()) if automatic else Trial(self.trainer)
        compared = configured.compared_steps()
        self._look()
        steps = configured.cut_to(LONGEST_CHUNK_SECONDS)
        cut, self._chunk_steps = steps < self._chunk_steps, steps
        search = self._search = Search(
            self._make(Choice()),
            self._make,
            compared_steps=compared,
            narrow=self.trainer.settings.precision != "float32",
            cut=cut,
            agree=functools.partial(agreed, agreement=self.trainer.agreement),
            found=self._found,
            look=self._look,
        )
        search.run()
        self._tell(search, complete=True)

    def _make(self, choice: Choice) -> Trial:
        """Makes a trial of other settings, in the state before the first step."""
        trainer = self.trainer
        experiment = trainer.experiment.on(trainer.experiment.strategy, choice.placements)
        settings = {"chunk_steps": self._chunk_steps, **choice.settings}
        if trainer.settings.compile == AUTO:  # which is found out by a run itself
            settings = {"compile": OFF, **settings}
        return Trial(Trainer(experiment, trainer.workdir, dataclasses.replace(trainer.settings, **settings)))

    def _look(self) -> None:
        """Raises a `PreemptedError` on all workers if one of them got a signal."""
        if self.trainer.agreement.any_worker(self.preemption.signal is not None):
            raise PreemptedError(
                f"stopped by {self.preemption.name}; the results so far are in `{self.path}`. Run the same "
                "command again for all results."
            )

    def _found(self, row: Row) -> None:
        self.console.print(progress(row), soft_wrap=True)
        assert self._search is not None
        self._keep(self._search, complete=False)

    def _tell(self, search: Search, *, complete: bool) -> None:
        self.console.print(table(search))
        self.console.print(winners(search), soft_wrap=True)
        self._keep(search, complete=complete)
        self.console.print(f"measured in {search.spent:.0f} s; all of it is in `{self.path}`", soft_wrap=True)

    def _keep(self, search: Search, *, complete: bool) -> None:
        if is_chief():
            write_whole({self.path: json_text(as_json(search, complete=complete)).encode()})


def refuse_what_cannot_be_tried(trainer: Trainer) -> None:
    """Raises a `ConfigurationError` for a strategy whose replicas don't take steps together."""
    backend = trainer.train_step.backend
    if not backend.steps_here:
        raise ConfigurationError(
            f"`--mode=tune` measures steps in which all replicas synchronize; {backend.how} they don't. Leave out the "
            "runtime's `--gin_file`, tune one worker alone, and compare `examples_per_second` in the metric "
            "lines with all workers. See docs/make-it-fast.md."
        )
