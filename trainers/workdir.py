"""The folder of a run: its paths, lock and JSON files."""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from core.disk import disk_full, remove_unfinished, write_whole
from core.errors import CheckpointError, ConfigurationError, shown
from core.storage import is_address, parse_address

CHOICE = "compile.json"  # the file of a workdir with the choice for `Trainer.compile = "auto"`
MEMORY = "memory.json"  # the file with the choice for `Trainer.memory_budget`


class Workdir:
    """Paths in a run's folder, and the small JSON files on how the run started and ended."""

    def __init__(self, path: Path):
        self.named = path  # in messages
        self.path = path = path.absolute()  # user code may change the directory
        self.checkpoints = path / "checkpoints"
        self.configurations = path / "config"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events"
        self.evaluations = path / "evaluations.jsonl"  # of evaluations during a run: trainers/runs/evaluations_file.py
        self.evaluation_events = path / "evaluations"
        self.warnings = path / "warnings.jsonl"
        self.result = path / "result.json"
        self._folder: int | None = None
        self._lock: IO[str] | None = None
        self.configuration: Mapping[str, str] = {}
        self.config_hash = ""
        self.hooks: Mapping[str, str] = {}  # the bindings of hooks, which may change when a run resumes

    def create(self) -> None:
        """Makes the folder. Checks that it is writable and that its entries are files and folders as expected."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)  # another start may have removed it as a leftover
        except OSError as error:
            raise disk_full(error, self.path) or ConfigurationError(
                f"the workdir `{self.named}` can't be written: {error.strerror or error}. Give another with "
                "`--workdir=DIR`, or change its permissions."
            ) from None
        files = [
            self.path / ".lock",
            self.path / "run.json",
            self.result,
            self.metrics,
            self.evaluations,
            self.warnings,
        ]
        for path in (*files, *self.path.glob("native_stderr*.log")):
            if path.exists() and not path.is_file():  # opening a pipe would block
                raise _wrong_kind(path, "a plain file")
        for path in self._folders:
            if path.exists() and not path.is_dir():
                raise _wrong_kind(path, "a folder")

    @property
    def _folders(self) -> tuple[Path, ...]:
        names = ("samples", "capsules")
        return self.configurations, self.configurations / "history", self.events, *(self.path / name for name in names)

    def newest_name(self) -> str:
        """Returns the newest checkpoint's name, without reading it."""
        return max((path.name for path in self.checkpoints.glob("step-*")), default="none")

    def lock(self) -> None:
        """Locks the folder until this process ends, and removes leftovers of killed runs."""
        if not self.take():
            raise ConfigurationError(
                f"another run is writing to the workdir `{self.named}`: wait for it, or give another with "
                "`--workdir=DIR`."
            )
        if self._folder is not None:
            os.close(self._folder)
        self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)  # held open, so that its inode isn't reused
        remove_unfinished([self.path, *self._folders])  # safe, because this run holds the lock

    def take(self) -> bool:
        """Takes the lock until this process ends. Returns False if another process holds it."""
        if self._folder is not None:
            return True  # locked before, for a run in object storage
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115  # held open: closing it would unlock
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Releases the lock, for a process that continues after the run."""
        if self._lock is not None:
            self._lock.close()
        if self._folder is not None:
            os.close(self._folder)
        self._lock = self._folder = None

    def check_there(self) -> None:
        """Raises a `CheckpointError` if the locked folder was removed, moved or replaced."""
        if self._folder is None:
            return
        try:
            there = os.path.samestat(os.fstat(self._folder), os.stat(self.path))
        except OSError:
            there = False
        if not there:
            raise CheckpointError(
                f"the workdir `{self.named}` was removed or moved during the run, so nothing more can be saved "
                "in it. Put it back and run the same command again: it resumes from the newest checkpoint."
            )

    def read_result(self) -> dict[str, Any]:
        """Returns `result.json`, which says how the last run ended. A missing or invalid file gives an empty result."""
        try:
            found = json.loads(self.result.read_bytes())
            whole = isinstance(found["evaluation"], dict) and {type(found["step"]), type(found["exit_code"])} == {int}
        except (OSError, ValueError, TypeError, LookupError, RecursionError):  # missing, or not a valid result
            return {}
        return dict(found) if whole else {}

    def write_result(
        self,
        *,
        step: int,
        exit_code: int,
        reason: str,
        evaluation: Mapping[str, float],
        best: Mapping[str, Any] | None = None,
    ) -> None:
        """Records how the run ended, and which checkpoint is the `best`, if one is kept."""
        result = {"step": step, "exit_code": exit_code, "reason": reason, "evaluation": dict(evaluation)}
        self._write_result({**result, **({"best": best} if best else {})})

    def write_failed_start(self, *, exit_code: int, reason: str) -> None:
        """Writes `result.json` for a failed start, without a step, unless it holds the result of a run."""
        if not self.read_result() and (self._folder is not None or self.take()):
            self._write_result({"step": None, "exit_code": exit_code, "reason": reason, "evaluation": {}})

    def _write_result(self, result: Mapping[str, Any]) -> None:
        self.check_there()
        write_whole({self.result: json_text(result).encode()})


def named_folder(workdir: object) -> Path:
    """Returns the folder named in a Python call, with `~` expanded as in a shell; of an address, the local one."""
    if not isinstance(workdir, str | os.PathLike) or not os.fspath(workdir):
        raise ConfigurationError(f"`workdir` is {shown(workdir)}; give the folder of the run, as 'runs/mine'.")
    text = os.fsdecode(workdir)
    return parse_address(text, "workdir").folder if is_address(text) else Path(text).expanduser()


def _wrong_kind(path: Path, kind: str) -> ConfigurationError:
    return ConfigurationError(f"`{path}` isn't {kind}: move it away, or give another folder with `--workdir=DIR`.")


def json_text(value: Mapping[str, Any]) -> str:
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Replaces non-finite numbers, which JSON lacks, by null, as in `metrics.jsonl`."""
    if isinstance(value, Mapping):
        return {key: _finite(x) for key, x in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


LOCKS = Path("/proc/locks")  # Linux; runs on other machines aren't detected


def is_locked(path: Path) -> bool:
    """Returns whether a process of this machine holds the lock on a file."""
    try:
        lock, lines = path.stat(), LOCKS.read_text().splitlines()
    except OSError:
        return False
    # A line is `7: FLOCK  ADVISORY  WRITE 4711 08:02:131 0 EOF`; a waiting process has `->` as its second word. The
    # device number differs from that of `stat` on btrfs and overlays, so the process's open files are compared too.
    locks = [line.split() for line in lines if " FLOCK " in line]
    return any(_has_open(int(words[4]), lock) for words in locks if words[5].endswith(f":{lock.st_ino}"))


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Returns whether the process has the file open; True if its files can't be listed."""
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return True
    for descriptor in opened:
        try:
            if os.path.samestat(descriptor.stat(), file):
                return True
        except OSError:  # closed meanwhile
            continue
    return False
