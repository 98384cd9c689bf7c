"""Where cases run: a scratch folder, fork servers, and the undisturbed run to compare with."""

import contextlib
import dataclasses
import json
import queue
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from core import checkpoint
from core.errors import CheckpointError
from tests.commands import Done, ForkServer
from tools.campaign import subject
from tools.campaign.report import Tally

LIMIT = 120.0  # seconds after which a run counts as hung; an undisturbed one takes about two


class HungError(Exception):
    """A run that didn't end by itself."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One disturbance to try; its name and the seed determine its random numbers."""

    name: str
    check: Callable[["Bench"], None]
    row: str  # of the table


class Lab:
    """Resources that all cases share."""

    def __init__(self, scratch: Path, seed: int, *, short: bool):
        self.scratch, self.seed, self.short = scratch, seed, short
        self.whole = scratch / "whole"
        self.marks: list[str] = []
        self.seconds = 0.0  # of the undisturbed run
        self.limit = LIMIT
        self._servers: queue.SimpleQueue[ForkServer] = queue.SimpleQueue()  # those that are free

    @contextlib.contextmanager
    def server(self) -> Iterator[ForkServer]:
        """Lends a server to one case at a time; a broken one isn't lent again."""
        try:
            server = self._servers.get_nowait()
        except queue.Empty:
            server = ForkServer(stderr=subprocess.DEVNULL)
        try:
            yield server
        except subprocess.TimeoutExpired:
            self._servers.put(server)
            raise
        except BaseException:
            server.process.kill()
            raise
        self._servers.put(server)

    def close(self) -> None:
        """Ends the servers."""
        while not self._servers.empty():
            process = self._servers.get().process
            process.kill()
            process.wait()

    def prepare(self) -> None:
        """Runs the undisturbed run, and lists its marks."""
        subject.write(self.whole)
        with self.server() as server:
            server.run("--help", cwd=self.whole, timeout=LIMIT)  # imports TensorFlow, which isn't part of a run
        began = time.monotonic()
        journal = self.whole / "marks.txt"
        done = self.run(self.whole, journal=str(journal))
        self.seconds = time.monotonic() - began
        self.limit = max(LIMIT, 20 * self.seconds)  # on a machine that is busy
        if done.returncode:
            raise RuntimeError(f"the undisturbed run ended with {done.returncode}:\n{done.stderr}")
        self.marks = journal.read_text().splitlines()

    def run(
        self, folder: Path, *flags: str, workdir: Path | None = None, limit: float | None = None, **mark: Any
    ) -> Done:
        """Runs the subject in `folder`; kills it after `limit` seconds and raises `subprocess.TimeoutExpired`."""
        limit = self.limit if limit is None else limit
        before = {"module": "tools.campaign.marks", "arguments": {"folder": str(workdir or folder / "run"), **mark}}
        flags = (subject.FLAG, f"--workdir={workdir or 'run'}", *flags)
        with self.server() as server:
            return server.run(*flags, cwd=folder, timeout=limit, before=before)


class Bench:
    """Tools of one case."""

    def __init__(self, lab: Lab, case: Case, tally: Tally, repeat: str):
        self.lab, self.case, self.tally, self.repeat = lab, case, tally, repeat
        self.chance = random.Random(f"{lab.seed}/{case.name}")
        self.folder = lab.scratch / re.sub(r"\W+", "-", case.name)
        self._number = 0

    def new(self, template: Path | None = None) -> Path:
        """Makes a folder for another run, a copy of `template` if there is one."""
        self._number += 1
        folder = self.folder / str(self._number)
        if template is None:
            subject.write(folder)
        else:
            shutil.copytree(template, folder, symlinks=True)
        return folder

    def count(self, outcome: str, *, row: str | None = None, tried: int = 1) -> None:
        """Counts one trial by its outcome, in the case's row unless another is given."""
        self.tally.count(row or self.case.row, outcome, tried=tried)

    def fail(self, text: str) -> None:
        """Records a failure."""
        self.tally.fail(self.case.row, f"{self.case.name}: {text}\n    {self.repeat}")

    def run(self, folder: Path, *flags: str, codes: Sequence[int] = (0,), **mark: Any) -> Done:
        """Runs the subject to its end, whose exit code must be in `codes`, without a traceback."""
        try:
            done = self.lab.run(folder, *flags, **mark)
        except subprocess.TimeoutExpired as error:
            raise HungError(f"hangs: no end within {error.timeout:g} s; {last_line(error.stderr)}") from None
        if done.returncode not in codes:
            self.fail(f"ended with {done.returncode}, not {' or '.join(map(str, codes))}: {last_line(done.stderr)}")
        if "Traceback (most recent call last)" in done.stderr:
            self.fail(f"a traceback: {last_line(done.stderr)}")
        return done

    def readable(self, folder: Path, workdir: Path | None = None) -> None:
        """Checks that no checkpoint is damaged."""
        warnings: list[str] = []
        try:
            checkpoint.newest((workdir or folder / "run") / "checkpoints", warn=warnings.append)
        except CheckpointError as error:
            warnings.append(str(error))
        for warning in warnings:
            self.fail(warning)

    def same(self, folder: Path, *, workdir: Path | None = None, lost: str | None = None) -> bool:
        """Compares a finished run with the undisturbed one."""
        try:
            found = subject.differences(self.lab.whole / "run", workdir or folder / "run", lost=lost)
        except (OSError, json.JSONDecodeError, AssertionError) as error:
            found = [f"the workdir can't be compared: {error!r}"]
        if found:
            self.fail("; ".join(found[:4]))
        return not found


def last_line(text: Any) -> str:
    """Returns the last output line, for the report."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text or "").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
