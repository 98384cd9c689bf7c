"""The search: compares each proposal with the best settings so far, setting by setting, within a time limit."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from core.errors import NotFiniteError, PeerLostError, PreemptedError
from trainers.errors.exit_report import reason_of
from trainers.performance.tune.contest import Outcome, contest
from trainers.performance.tune.proposals import ORDER, Case, Change, Choice, NotTried
from trainers.performance.tune.trial import forget, unlike

SEARCH_SECONDS = 120.0  # no trial begins later
TOO_SLOW, TOO_SLOW_SECONDS = 3.0, 0.1  # times as slow, for at least this long: measuring stops

CHOSEN, SLOWER, VOID, FAILED, NOT_TRIED = "faster", "no faster", "void", "failed", "not tried"


class Tried(Protocol):
    """The part of a `Trial` that the search uses."""

    seconds_a_step: float
    traced: float
    waits: float

    def figures(self, steps: int) -> Mapping[str, float]: ...

    def step(self) -> float: ...

    def case(self, *, seconds: float, waits: float, cut: bool) -> Case: ...


@dataclasses.dataclass(frozen=True)
class Row:
    """A proposal and its result."""

    setting: str
    shown: str
    verdict: str
    why: str = ""
    outcome: Outcome | None = None
    traced: float | None = None  # seconds until the first call ended

    @property
    def chosen(self) -> bool:
        return self.verdict == CHOSEN


class Search:
    """Tries the settings. `rows` holds the results so far, `choice` the chosen changes."""

    def __init__(
        self,
        configured: Tried,
        make: Callable[[Choice], Tried],
        *,
        compared_steps: int,
        narrow: bool = False,
        cut: bool = False,
        agree: Callable[[Sequence[float]], Sequence[float]] = lambda numbers: numbers,
        found: Callable[[Row], object] = lambda row: None,
        look: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`configured` is the trial of the configured settings. `look` is called often, and may raise an error."""
        self.configured = self.best = configured
        self.choice, self.rows = Choice(), list[Row]()
        self.total: Outcome | None = None
        self._make, self._steps, self._cut, self._narrow = make, compared_steps, cut, narrow
        self._agree, self._found, self._look, self._clock = agree, found, look, clock
        self._began = clock()
        self._figures = configured.figures(compared_steps)
        self.seconds = self.configured_seconds = agree([configured.step()])[0]

    @property
    def spent(self) -> float:
        """Returns the seconds since the start."""
        return self._clock() - self._began

    def run(self) -> None:
        """Tries all proposals, then compares all chosen changes together with the configured settings."""
        for propose in ORDER:
            (waits,) = self._agree([self.best.waits])
            proposals = propose(self.best.case(seconds=self.seconds, waits=waits, cut=self._cut))
            proposal = next(proposals, None)
            while proposal is not None:
                row = self._row(proposal)
                self.rows.append(row)
                self._found(row)
                try:
                    proposal = proposals.send(row.chosen)
                except StopIteration:
                    break
        if self.choice.changes:
            self.total = self._contest(self.configured, self.best)
            if not self.total.faster:
                self.choice = Choice()

    def _row(self, proposal: Change | NotTried) -> Row:
        setting, shown = proposal.setting, proposal.shown
        if isinstance(proposal, NotTried):
            return Row(setting, shown, NOT_TRIED, proposal.why)
        if self._agree([self.spent])[0] > SEARCH_SECONDS:
            return Row(setting, shown, NOT_TRIED, f"{SEARCH_SECONDS:.0f} s were over")
        self._look()
        try:
            return self._tried(proposal)
        except (PeerLostError, PreemptedError):
            raise
        except NotFiniteError as error:
            return Row(setting, shown, VOID, reason_of(error))
        except Exception as error:  # XLA, a device or the task may raise anything
            return Row(setting, shown, FAILED, reason_of(error))
        finally:
            forget()

    def _tried(self, change: Change) -> Row:
        choice = self.choice.with_change(change)
        trial = self._make(choice)
        row = Row(change.setting, change.shown, SLOWER, traced=trial.traced)
        times = trial.seconds_a_step / self.best.seconds_a_step
        if times > TOO_SLOW and trial.seconds_a_step > TOO_SLOW_SECONDS:
            return dataclasses.replace(
                row, why="one step was enough", outcome=Outcome([1 / times], trial.seconds_a_step)
            )
        figures = trial.figures(self._steps)
        if difference := unlike(self._figures, figures, self._steps, narrow=self._narrow):
            return dataclasses.replace(row, verdict=VOID, why=difference)
        outcome = self._contest(self.best, trial)
        if not outcome.faster:
            return dataclasses.replace(row, outcome=outcome)
        self.choice, self.best, self.seconds = choice, trial, outcome.seconds
        return dataclasses.replace(row, verdict=CHOSEN, outcome=outcome)

    def _contest(self, before: Tried, after: Tried) -> Outcome:
        def turn(trial: Tried) -> Callable[[], float]:
            def step() -> float:
                self._look()
                return trial.step()

            return step

        return contest(turn(before), turn(after), agree=self._agree, clock=self._clock)
