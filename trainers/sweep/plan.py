"""What a sweep is to do: its points, the folder and the command of each one's run, and which of them are done."""

import contextlib
import dataclasses
import fcntl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl.flags import FlagValues

from core.disk import disk_full
from core.errors import ConfigurationError
from trainers.errors.packages import CHECKOUT
from trainers.gin_audit import audit
from trainers.gin_audit.text_files import read_text
from trainers.sweep.grid import Over, Point
from trainers.sweep.pool import Job
from trainers.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Points, the flags of `trainers.main` that they share, and the folder that theirs lie in.

    Where there are `launch_words`, flags of `trainers.launch`, each run is a cluster on this machine.
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
        """Returns the words that give the shared flags again."""
        words = []
        flags = {self.main_flags[name].name: self.main_flags[name] for name in self.main_flags}  # not `-v` again
        for name, flag in flags.items():
            if flag.present and name not in ("workdir", "flagfile"):
                words += [f"--{name}={x}" for x in (flag.value if isinstance(flag.value, list) else [flag.value])]
        return words

    def job(self, point: Point) -> Job:
        """Returns what runs a point."""
        params = [f"--gin_param={param}" for param in point.params]
        words = [*self.main_words, *params, f"--workdir={self.path(point)}"]
        command = ["trainers.launch", *self.launch_words, "--"] if self.launch_words else ["trainers.main"]
        log = self.folder / "output" / f"{point.name}.log"
        return Job(point.name, [sys.executable, "-m", *command, *words], log)

    def is_finished(self, point: Point) -> bool:
        """Tells whether the point's folder holds a finished run of the very configuration that it would have now."""
        params = [*self.main_flags.gin_param, *point.params]
        given = audit.read(self.main_flags.gin_file, params, search=[CHECKOUT]).given
        workdir = Workdir(self.path(point))
        try:
            before = read_text(workdir.configurations / "given.gin").splitlines()
        except (OSError, ValueError):  # there is none, or none that can be read: the run itself will say
            return False
        # A binding that took no effect has become a comment when the run was set up.
        same = [line.removeprefix("# ") for line in before] == given.splitlines()
        return same and workdir.read_result().get("exit_code") == 0

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keeps other sweeps out of the folder meanwhile."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.folder / ".sweep").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another sweep is at work in `{self.folder}`: wait for it, or name another folder with "
                    "`--workdir=DIR`."
                ) from None
            except OSError as error:
                raise disk_full(error, self.folder) or ConfigurationError(
                    f"the folder `{self.folder}` can't be written: {error.strerror}. Name another with "
                    "`--workdir=DIR`, or change its permissions."
                ) from None
            yield
