"""Asynchronous checkpoints. Training waits only while variables are copied in memory; a thread writes the copy."""

import contextlib
import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from types import MappingProxyType
from typing import Any

from core.checkpoint.files import Warn, path_of, put_in_place
from core.checkpoint.keep import Keep, Keeper
from core.checkpoint.manifest import SavedVariable, Variables
from core.checkpoint.peers import ALONE, Expected, Peers, refusal
from core.checkpoint.versions import versions
from core.checkpoint.write import Copies, copied, made_folder, put_together, write_parts

LONG_SECONDS = 3.0
TOO_OFTEN = (
    "A checkpoint was due while the previous one was still being written, and training waits: save less often, or to "
    "a faster disk."
)

KEEP = Keep()


@dataclasses.dataclass
class _UnderWay:
    """A save in progress. `work` runs in this process. `rest` runs once every process has finished its `work`."""

    step: int
    temporary: Path
    work: "futures.Future[None]"
    rest: Callable[[], None] | None


class Saves:
    """Writes checkpoints into `directory`, one at a time. The next save waits until the previous one is written.

    If several processes (`peers`) hold parts of the variables, all call the same methods after the same training step.
    They communicate only in these calls, never from the writer's thread.
    """

    def __init__(self, directory: Path, *, keep: Keep = KEEP, warn: Warn = warnings.warn, peers: Peers = ALONE):
        self.directory, self.warn, self.peers = directory, warn, peers
        self.keeper = Keeper(directory, keep)
        self._copies: Copies = {}
        self._under_way: _UnderWay | None = None
        self._warnings: list[str] = []  # of the writer, printed by other threads
        self._writer = futures.ThreadPoolExecutor(1, "checkpoint")

    def begin(
        self,
        variables: Variables,
        *,
        step: int,
        examples: int,
        config_hash: str,
        extra: Mapping[str, Any] = MappingProxyType({}),
        measured: Mapping[str, float] = MappingProxyType({}),
    ) -> Path:
        """Copies `variables`, and starts writing `directory/step-<step>/`. One rename makes the checkpoint visible.

        Then checkpoints that `keep` doesn't cover are removed. `extra` is anything that JSON can hold. `measured` has
        the metrics at this step. If the process dies at any time, `newest` finds the earlier checkpoint or the complete
        new one.
        """
        self.settle(lambda text: self.warn(TOO_OFTEN))
        self._copies = copies = copied(variables, worker=self.peers.worker, into=self._copies)
        target, is_first = path_of(self.directory, step), self.peers.worker == 0
        temporary = self._folder(step, target.name)
        content = {
            "step": step,
            "examples": examples,
            "config_hash": config_hash,
            "versions": versions(),
            "extra": json.loads(json.dumps({**extra, **self.keeper.record(step, measured)})),  # as it is now
        }
        whole: dict[str, SavedVariable] = {}
        alone = self.peers.workers == 1

        def finish() -> None:
            if is_first:
                put_together(temporary, copies, whole, content)
                put_in_place(temporary, target, self._warnings.append)
                self.keeper.remove_old(step, self._warnings.append)

        def write() -> None:
            whole.update(write_parts(temporary, copies, self.peers.worker))
            if alone:
                finish()

        self._under_way = _UnderWay(step, temporary, self._writer.submit(write), None if alone else finish)
        return target

    @property
    def busy(self) -> bool:
        return self.under_way is not None

    @property
    def under_way(self) -> object | None:
        """Returns an object for the save that this process is writing; `None` if it writes none."""
        save = self._under_way
        return save if save is not None and not save.work.done() else None

    def go_on(self) -> None:
        """Completes the save in progress once no process is `busy`; all processes call it after the same step.

        Raises a `CheckpointError` in every process if one process couldn't write.
        """
        save = self._under_way
        if save is None:
            return
        error = save.work.exception()
        if error is not None and not isinstance(error, Expected):
            raise error
        problem = self.peers.problem(error, save.temporary)
        if problem is None and save.rest is not None:
            save.work, save.rest = self._writer.submit(save.rest), None
            return
        self._under_way = None
        while self._warnings:
            self.warn(self._warnings.pop(0))
        if problem is not None:
            if self.peers.worker == 0:
                shutil.rmtree(save.temporary, ignore_errors=True)
            raise refusal(self.directory, save.step, error, problem)

    def settle(self, note: Callable[[str], object] = lambda text: None) -> None:
        """Waits until all saves are complete, and raises the error of a failed one. Calls `note` if this takes long."""
        while (save := self._under_way) is not None:
            _wait(save, note)
            self.go_on()

    def wait(self, seconds: float) -> None:
        """Waits until this process has written its part, or `seconds` have passed; any thread may call it."""
        if (save := self._under_way) is not None:
            futures.wait([save.work], seconds)

    @contextlib.contextmanager
    def settled(self, note: Callable[[str], object] = lambda text: None) -> Iterator[None]:
        """Calls `settle` when its `with` block ends without an error.

        After an error or a second Ctrl-C, this process waits for its own part, and contacts no other process.
        """
        try:
            yield
        except BaseException as ended:
            if (save := self._under_way) is not None:
                _wait(save, note)
                error = save.work.exception()
                if error is not None and error is not ended:
                    self.warn(f"The checkpoint of step {save.step} could not be written: {error}")
            raise
        self.settle(note)

    def _folder(self, step: int, name: str) -> Path:
        """Makes the folder that all processes write into, in worker 0. If that fails, every process raises an error."""
        made, error = None, None
        if self.peers.worker == 0:
            try:
                made = made_folder(self.directory, name, self.warn).name
            except OSError as failed:
                error = failed
        agreed = self.peers.first_text(made)
        if agreed is None:
            raise refusal(self.directory, step, error, self.peers.problem(error))
        return self.directory / agreed


def _wait(save: _UnderWay, note: Callable[[str], object]) -> None:
    """Waits until this process has written its part of `save`, and calls `note` if this takes long."""
    if futures.wait([save.work], LONG_SECONDS).not_done:
        note(f"waiting until the checkpoint of step {save.step} is written")
        futures.wait([save.work])


def save(
    directory: Path,
    variables: Variables,
    *,
    step: int,
    examples: int,
    config_hash: str,
    keep: int = 3,
    extra: Mapping[str, Any] = MappingProxyType({}),
    warn: Warn = warnings.warn,
    peers: Peers = ALONE,
) -> Path:
    """Saves one checkpoint as `Saves` does, waits until it is written, and returns its path."""
    saves = Saves(directory, keep=Keep(keep), warn=warn, peers=peers)
    path = saves.begin(variables, step=step, examples=examples, config_hash=config_hash, extra=extra)
    saves.settle()
    return path
