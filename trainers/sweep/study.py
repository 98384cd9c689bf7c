"""A search as an Optuna study: trials are asked for, run, pruned by their own metrics, and told to its storage.

A trial runs once per seed, one run after the other, in folders `trial=3,seed=0`. Its value is the mean of the metric's
last values. The first seed alone is compared with other trials to prune it, so that all comparisons share a seed.
"""

import contextlib
import dataclasses
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from core.errors import EXIT_CODES, INTERRUPTED, NotFiniteError, PreemptedError, TapeloopError
from trainers.runs.find import check_figures
from trainers.runs.read import read_run
from trainers.runs.spread import Spread
from trainers.sweep.grid import Point, points_of
from trainers.sweep.opening import distribution, open_study, stored_trials
from trainers.sweep.plan import Sweep
from trainers.sweep.repeats import HEARD_SECONDS, counted, folder_of, lock_name, repeat, repeat_dead
from trainers.sweep.search import Search
from trainers.sweep.storage import refused
from trainers.sweep.summary import Trial, lead, ranking

import optuna  # isort: skip  # after `storage`, whose error says how to install it
from optuna.trial import FrozenTrial, TrialState

STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "run elsewhere",
    TrialState.WAITING: "wait",
}
RUNS_CONTINUE = "The runs continue, without being pruned until the storage answers."
THEN_RESUMES = "No result is lost: the same command reads the finished runs, and resumes the others."


def is_over(search: Search) -> bool:
    """Returns whether all trials of the search have ended. Doesn't create its study."""
    trials = stored_trials(search)
    return len(counted(trials)) >= search.trials and all(trial.state.is_finished() for trial in trials)


@dataclasses.dataclass
class _Begun:
    """A trial that this process runs."""

    trial: optuna.Trial
    folder: str
    left: list[Point]
    values: dict[str, float] = dataclasses.field(default_factory=dict)  # by seed
    running: Point | None = None
    pruned_at: int | None = None
    taken: bool = False  # another process took this one for dead, and repeats the trial
    reported: int = -1  # the last step in the storage
    size: int = 0  # of the metrics file when it was last read


class Study:
    """The trials of one study, shared by all processes that use its storage."""

    def __init__(self, sweep: Sweep, search: Search, clock: Callable[[], float] = time.time):
        self._sweep, self._search, self._clock = sweep, search, clock
        self._distributions = {space.name: distribution(space) for space in search.spaces}
        self._begun: dict[str, _Begun] = {}  # by the name of the trial's folder
        self._worker = uuid.uuid4().hex
        self._heard = clock()
        self._silent_until = 0.0  # the storage has failed, and isn't asked before
        self._ended = 0
        self._lost: TapeloopError | None = None
        allow = bool(sweep.main_flags.allow_config_change)
        self._study = open_study(search, sweep.bindings, allow_config_change=allow)

    def progress(self) -> str:
        """Returns how many trials have ended, of how many."""
        with self._storing():
            trials = self._trials()
            self._ended = len(counted(trials)) - sum(not trial.state.is_finished() for trial in trials)
        return f"{self._ended} of {self._search.trials} trials"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Shows the other processes of this machine that this one lives; at the end, hands back unfinished trials."""
        with self._sweep.claimed(lock_name(self._worker)):
            try:
                yield
            finally:
                self._hand_back()
                if not self._lost:  # otherwise the released lock shows that this process has ended
                    (self._sweep.folder / lock_name(self._worker)).unlink(missing_ok=True)
        if self._lost:
            raise self._lost

    def next(self) -> Point | None:
        """Returns the next run: another seed of a trial, or the first of a new one; `None` if there is none now."""
        if self._lost:
            return None
        with self._storing():
            while begun := self._idle() or self._begin():
                point = begun.running = begun.left.pop(0)
                if not self._sweep.is_finished(point):
                    return point
                self._end(begun, point, 0)  # an earlier process has run it
        return None

    def stops(self, point: Point) -> bool:
        """Reports the new metrics of a running point to the pruner. Returns whether the point is to be stopped."""
        begun, now = self._of(point), self._clock()
        if begun.pruned_at is not None or now < self._silent_until:
            return False
        try:
            if now - self._heard >= HEARD_SECONDS:
                self._heard = now
                for each in self._begun.values():
                    each.trial.set_user_attr("heard", now)
            return not begun.values and self._report(begun, point, prune=True)
        except optuna.exceptions.UpdateFinishedTrialError:
            begun.taken = True
            return True
        except Exception as error:  # the run is unharmed
            if not self._silent_until:
                print(f"warning: {refused(self._search.storage, error, RUNS_CONTINUE)}", file=sys.stderr, flush=True)
            self._silent_until = now + HEARD_SECONDS
            return False

    def ended(self, point: Point, code: int) -> tuple[int, str | None]:
        """Tells the study how a run ended. Returns the code that counts, and a description if it isn't the usual."""
        begun = self._of(point)
        with self._storing():
            return self._end(begun, point, code)
        return code, None

    def results(self, *, ascii_only: bool) -> list[RenderableType]:
        """Returns the best trials of all processes, their states, and whether the best one leads."""
        search, found = self._search, counted(self._trials())
        complete = [trial for trial in found if trial.state == TrialState.COMPLETE]
        complete.sort(key=lambda trial: -search.sign * trial.values[0])
        trials = [
            Trial(
                trial.user_attrs["folder"],
                [_shown(trial.params[name]) for name in self._distributions],
                Spread.of([*trial.user_attrs["values"].values()]),
            )
            for trial in complete
        ]
        states = {state: sum(trial.state == state for trial in found) for state in STATES}
        told = ", ".join(f"{count} {STATES[state]}" for state, count in states.items() if count)
        lines = [f"{len(found)} trials: {told}." if found else "", lead(search.figure, trials)]
        tables = [ranking([*self._distributions], search.figure, trials, ascii_only=ascii_only)] if trials else []
        return [*tables, *(Text(line) for line in lines if line)]

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """Takes an error of the storage for its end: runs continue, and no further trial begins."""
        try:
            yield
        except TapeloopError:
            raise
        except Exception as error:  # whatever Optuna, SQLAlchemy and the database's driver raise
            self._lost = refused(self._search.storage, error, THEN_RESUMES)

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _of(self, point: Point) -> _Begun:
        return next(begun for begun in self._begun.values() if begun.running is point)

    def _idle(self) -> _Begun | None:
        """Returns a trial of this process with a seed that is left, and none that runs."""
        return next((begun for begun in self._begun.values() if begun.running is None and begun.left), None)

    def _begin(self) -> _Begun | None:
        """Asks for a new trial, or takes a waiting one; `None` if the study has all of its trials."""
        repeat_dead(self._study, self._sweep.folder, self._worker, self._clock())
        trials = self._trials()
        if len(counted(trials)) >= self._search.trials and all(t.state != TrialState.WAITING for t in trials):
            return None
        trial = self._study.ask(self._distributions)
        folder = folder_of(trial)
        about = {"folder": folder, "host": socket.gethostname(), "worker": self._worker, "heard": self._clock()}
        for name, value in about.items():
            trial.set_user_attr(name, value)
        params = [f"{name} = {_shown(value)}" for name, value in trial.params.items()]
        points = [
            Point(",".join(filter(None, [folder, seed.name])), [*params, *seed.params], seed.values)
            for seed in points_of(self._search.seeds)
        ]
        begun = self._begun[folder] = _Begun(trial, folder, points)
        return begun

    def _end(self, begun: _Begun, point: Point, code: int) -> tuple[int, str | None]:
        """Records the end of a run, unless another process has ended its trial meanwhile."""
        begun.running = None
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            if not begun.taken:
                return self._record(begun, point, code)
        del self._begun[begun.folder]
        return 0, "another process took this one for dead, and repeats the trial"

    def _record(self, begun: _Begun, point: Point, code: int) -> tuple[int, str | None]:
        """Records the end of a run, and of its trial if that has ended too."""
        if code in (PreemptedError.exit_code, INTERRUPTED) and begun.pruned_at is None:
            begun.left = []
            return code, None  # handed back at the end of this process, so that the same command resumes it
        if not begun.values:
            self._report(begun, point, prune=False)
        if begun.pruned_at is not None:
            return 0, self._tell(begun, TrialState.PRUNED, f"pruned at step {begun.pruned_at:,}")
        if code == NotFiniteError.exit_code:
            return 0, self._tell(begun, TrialState.PRUNED, f"{EXIT_CODES[code]}, which counts as pruned")
        if code:
            self._tell(begun, TrialState.FAIL, "")
            return code, None
        run, name = read_run(self._sweep.path(point)), self._search.figure
        check_figures([name], [run])
        value = run.figures[name].last[1]
        if not math.isfinite(value):
            return 0, self._tell(begun, TrialState.PRUNED, f"the last {name} isn't finite, which counts as pruned")
        begun.values[",".join(point.values)] = value
        begun.trial.set_user_attr("values", begun.values)
        if begun.left:
            return 0, None
        spread = Spread.of([*begun.values.values()])
        return 0, self._tell(begun, TrialState.COMPLETE, f"{name} {spread.told(name)}", spread.mean)

    def _tell(self, begun: _Begun, state: TrialState, outcome: str, value: float | None = None) -> str:
        """Ends a trial in the study. Returns `outcome`."""
        told = self._study.tell(begun.trial, value, state=state, skip_if_finished=True)
        if told.state != state:
            raise optuna.exceptions.UpdateFinishedTrialError
        del self._begun[begun.folder]
        return outcome

    def _report(self, begun: _Begun, point: Point, *, prune: bool) -> bool:
        """Reports new values of the metric to the study. Returns whether its pruner stops the run."""
        path = self._sweep.path(point)
        try:
            size = os.stat(path / "metrics.jsonl").st_size
        except OSError:  # not yet there
            return False
        if size == begun.size:
            return False
        run = read_run(path)
        curve = run.figures.get(self._search.figure)
        if curve and self._search.pruner == "hyperband" and isinstance(self._study.pruner, optuna.pruners.NopPruner):
            least, most = max(1, curve.steps[0]), run.steps or curve.steps[-1]
            self._study.pruner = optuna.pruners.HyperbandPruner(least, max(least, most))
        for step, value in curve.points if curve else ():
            if step > begun.reported:
                begun.trial.report(value, step)
                begun.reported = step
                if prune and step != run.steps and begun.trial.should_prune():  # at its last step it ends anyway
                    begun.pruned_at = step
                    return True
        begun.size = size
        return False

    def _hand_back(self) -> None:
        """Lets this or another process repeat the trials that this process has begun and not ended."""
        with contextlib.suppress(TapeloopError), self._storing():
            numbers = {begun.trial.number for begun in self._begun.values()}
            for trial in self._trials():
                if trial.number in numbers:
                    repeat(self._study, trial)


def _shown(value: Any) -> str:
    """Returns a parameter's value as gin writes it."""
    return value if isinstance(value, str) else repr(value)
