"""What a run does that another process trains, seen from its folder: new checkpoints, and whether it is over.

Nothing is locked: the folder may be on a file system that several machines share. A checkpoint may be removed or
replaced while it is looked at, and the run stopped and started again.
"""

from collections.abc import Callable
from pathlib import Path

from core.checkpoint import DamagedError, Manifest, checkpoints_in, verified
from core.errors import EXIT_CODES, INTERRUPTED, PeerLostError, PreemptedError
from trainers.loop.run_parts import FINISHED
from trainers.runs.lock import is_locked
from trainers.workdir import Workdir

_GOES_ON = (PreemptedError.exit_code, PeerLostError.exit_code, INTERRUPTED)  # the same command is to be run again


class NewCheckpoints:
    """Finds the checkpoints of a run that nobody has dealt with, oldest first."""

    def __init__(self, directory: Path, *, is_known: Callable[[Manifest], bool], warn: Callable[[str], None]):
        self._directory, self._is_known, self._warn = directory, is_known, warn
        self._done: set[tuple[int, int]] = set()  # by what the file system says of their folders

    def next(self) -> Manifest | None:
        """Returns one that is whole; one that is damaged is named, and passed over until another takes its place."""
        for _, path in reversed(checkpoints_in(self._directory)):
            folder = _folder(path)
            if folder is None or folder in self._done:
                continue
            try:
                manifest = verified(path)
            except DamagedError as error:
                if _folder(path) == folder:
                    self._done.add(folder)
                    self._warn(f"checkpoint `{path}` is damaged and was passed over: {error}.")
                continue
            if not self._is_known(manifest):
                return manifest
            self._done.add(folder)
        return None


def is_there(manifest: Manifest) -> bool:
    """Says whether a checkpoint is still what lies there, whole."""
    try:
        return verified(manifest.path) == manifest
    except DamagedError:
        return False


def how_it_ended(workdir: Workdir, steps: int) -> str | None:
    """Says how a run of so many `steps` has ended; None where it goes on, or is to be started again."""
    result = workdir.read_result()
    if not result or is_locked(workdir.path / ".lock"):
        return None
    code, step, reason = result["exit_code"], result["step"], str(result.get("reason"))
    if code in _GOES_ON or (reason == FINISHED and step < steps):  # the latter is being made longer
        return None
    return reason if code == 0 else f"exit code {code} ({EXIT_CODES.get(code, 'none of our exit codes')})"


def what_it_waits_for(workdir: Workdir, last: int | None) -> str:
    """Says what there is to wait for, where the checkpoint of step `last` was the last one to come."""
    if not (workdir.path / "run.json").exists():
        return f"a run to begin in `{workdir.named}`"
    result = workdir.read_result()
    stopped = f"; the run has stopped ({EXIT_CODES.get(result['exit_code'])})" if result else ""
    return f"{'the first checkpoint' if last is None else f'a checkpoint after that of step {last}'}{stopped}"


def _folder(path: Path) -> tuple[int, int] | None:
    """Returns what tells a folder from another one that takes its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
