"""The plan of a sweep: the folder and command of each run, which runs have finished, and which comes next."""

import collections
import contextlib
import dataclasses
import fcntl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from absl.flags import FlagValues
from rich.console import RenderableType

from core.disk import disk_full
from core.errors import ConfigurationError
from trainers.gin_audit import audit
from trainers.gin_audit.statements import text
from trainers.gin_audit.text_files import read_text
from trainers.process.bootstrap import CHECKOUT
from trainers.runs.figures import main_figures
from trainers.runs.find import check_figures
from trainers.runs.read import Run, read_run
from trainers.sweep.grid import Over, Point
from trainers.sweep.pool import Job
from trainers.sweep.summary import groups_of, summary
from trainers.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The points of a grid, the flags of `trainers.main` that all runs share, and the folder of the runs.

    If there are `launch_words` (flags of `trainers.launch`), each run is a cluster on this machine.
    """

    overs: Sequence[Over]
    points: Sequence[Point]
    main_flags: FlagValues
    folder: Path
    launch_words: Sequence[str] = ()

    def path(self, point: Point) -> Path:
        return self.folder / point.name

    @property
    def main_words(self) -> list[str]:
        """Returns the shared flags as command-line words."""
        words = []
        flags = {self.main_flags[name].name: self.main_flags[name] for name in self.main_flags}  # without `-v`
        for name, flag in flags.items():
            if flag.present and name not in ("workdir", "flagfile"):
                words += [f"--{name}={x}" for x in (flag.value if isinstance(flag.value, list) else [flag.value])]
        return words

    @property
    def bindings(self) -> Mapping[str, str]:
        """Returns {parameter or macro: value in gin syntax} of the gin files and `--gin_param`s."""
        given = audit.read(self.main_flags.gin_file, self.main_flags.gin_param, search=[CHECKOUT])
        return {binding.name: text(binding.value) for binding in given.bindings}

    def job(self, point: Point) -> Job:
        """Returns the job that runs a point."""
        params = [f"--gin_param={param}" for param in point.params]
        words = [*self.main_words, *params, f"--workdir={self.path(point)}"]
        command = ["trainers.launch", *self.launch_words, "--"] if self.launch_words else ["trainers.main"]
        log = self.folder / "output" / f"{point.name}.log"
        return Job(point.name, [sys.executable, "-m", *command, *words], log)

    def is_finished(self, point: Point) -> bool:
        """Returns whether the point's folder holds a finished run of the same configuration."""
        params = [*self.main_flags.gin_param, *point.params]
        given = audit.read(self.main_flags.gin_file, params, search=[CHECKOUT]).given
        workdir = Workdir(self.path(point))
        try:
            before = read_text(workdir.configurations / "given.gin").splitlines()
        except (OSError, ValueError):  # missing or unreadable: the run itself reports it
            return False
        # A binding without effect was written as a comment.
        same = [line.removeprefix("# ") for line in before] == given.splitlines()
        return same and workdir.read_result().get("exit_code") == 0

    @contextlib.contextmanager
    def claimed(self, name: str = ".sweep") -> Iterator[None]:
        """Locks a file of the folder while the block runs; `.sweep` excludes other grids."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.folder / name).open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another sweep is at work in `{self.folder}`: wait for it, or give another folder with "
                    "`--workdir=DIR`."
                ) from None
            except OSError as error:
                raise disk_full(error, self.folder) or ConfigurationError(
                    f"the folder `{self.folder}` can't be written: {error.strerror}. Give another with "
                    "`--workdir=DIR`, or change its permissions."
                ) from None
            yield


class Plan(Protocol):
    """Yields the runs of a sweep one by one, and takes note of how each ended."""

    def claimed(self) -> AbstractContextManager[None]:
        """Makes the folder ready for runs, and keeps other processes out where it must."""

    def next(self) -> Point | None:
        """Returns a point to run, or `None` if there is none until a run has ended."""

    def stops(self, point: Point) -> bool:
        """Returns whether a running point is to be stopped."""

    def ended(self, point: Point, code: int) -> tuple[int, str | None]:
        """Takes note of a run's end. Returns the exit code that counts, and a description if it isn't the usual one."""

    def progress(self) -> str:
        """Returns how many runs or trials have ended, of how many."""

    def results(self, *, ascii_only: bool) -> list[RenderableType]:
        """Returns a table of the results, and sentences on them; nothing if there are none."""


class Grid:
    """All points of a grid, in order, without those that have finished."""

    def __init__(self, sweep: Sweep, figures: Sequence[str]):
        self._sweep, self._figures = sweep, figures
        self.left = [point for point in sweep.points if not sweep.is_finished(point)]
        self._waiting = collections.deque(self.left)
        self._number = len(sweep.points) - len(self.left)
        if self._number:
            self._check_figures()

    def claimed(self) -> AbstractContextManager[None]:
        """Locks the folder against other sweeps."""
        return self._sweep.claimed()

    def next(self) -> Point | None:
        return self._waiting.popleft() if self._waiting else None

    def stops(self, point: Point) -> bool:
        """Returns False: every point of a grid is run to its end."""
        return False

    def ended(self, point: Point, code: int) -> tuple[int, str | None]:
        """Counts the run. Raises a `ConfigurationError` if no finished run has a wanted metric."""
        self._number += 1
        if code == 0:
            self._check_figures()
        return code, None

    def progress(self) -> str:
        return f"{self._number} of {len(self._sweep.points)}"

    def results(self, *, ascii_only: bool) -> list[RenderableType]:
        """Returns a table of the finished runs, with a row for each setting."""
        runs, sweep = self._runs(), self._sweep
        if not runs:
            return []
        figures = list(dict.fromkeys(self._figures)) or main_figures(run.figures for run in runs.values())
        groups = {
            key: [runs.get(point.name) for point in points]
            for key, points in groups_of(sweep.points, sweep.overs).items()
        }
        return [summary(sweep.overs, groups, figures, ascii_only=ascii_only)]

    def _check_figures(self) -> None:
        """Raises a `ConfigurationError` for a metric that no finished run has. Call it once a run has finished."""
        if self._figures:
            try:
                check_figures(self._figures, [*self._runs().values()])
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"{error} The same command with one of these, or without `--figure`, resumes the sweep."
                ) from None

    def _runs(self) -> dict[str, Run]:
        """Returns {name of a point: its run} for the finished runs."""
        sweep = self._sweep
        return {point.name: read_run(sweep.path(point)) for point in sweep.points if sweep.is_finished(point)}
