"""The plan of a sweep: its points, the folder and command of each run, and which runs have finished."""

import contextlib
import dataclasses
import fcntl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl.flags import FlagValues

from core.disk import disk_full
from core.errors import ConfigurationError
from trainers.gin_audit import audit
from trainers.gin_audit.text_files import read_text
from trainers.process.bootstrap import CHECKOUT
from trainers.sweep.grid import Over, Point
from trainers.sweep.pool import Job
from trainers.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The points of a sweep, the flags of `trainers.main` that they share, and the folder of their runs.

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
    def claimed(self) -> Iterator[None]:
        """Locks the folder against other sweeps while the block runs."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.folder / ".sweep").open("w"))
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
