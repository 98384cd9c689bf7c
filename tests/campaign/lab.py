"""Where cases are run and counted: a scratch folder, fork servers, the undisturbed run to compare with."""

import dataclasses
import json
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core import checkpoint
from core.errors import CheckpointError
from tests.campaign import subject
from tests.commands import Done, ForkServer

LIMIT = 120.0  # seconds after which a run hangs, where an undisturbed one takes about two


class HungError(Exception):
    """A run that didn't end by itself."""


class Tally:
    """What has come of one part's cases, which run in several threads."""

    def __init__(self) -> None:
        self.tried = 0
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def count(self, outcome: str, *, tried: int = 1) -> None:
        """Counts an outcome, and how many trials it is the end of."""
        with self._lock:
            self.tried += tried
            self.outcomes[outcome] += 1

    def fail(self, text: str) -> None:
        """Notes a failure, and says it at once: who reads along needn't wait for the table."""
        with self._lock:
            self.failures.append(text)
            print(f"failed: {text}", flush=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to try, by a name that repeats it: its random numbers come from seed and name alone."""

    name: str
    check: Callable[["Bench"], None]


class Lab:
    """What all cases share."""

    def __init__(self, scratch: Path, seed: int, *, short: bool):
        self.scratch, self.seed, self.short = scratch, seed, short
        self.whole = scratch / "whole"
        self.marks: list[str] = []
        self.seconds = 0.0  # that the undisturbed run took
        self.limit = LIMIT
        self._threads = threading.local()

    def server(self) -> ForkServer:
        """Returns this thread's own, which answers one request at a time."""
        if not hasattr(self._threads, "server"):
            self._threads.server = ForkServer()
        return self._threads.server

    def prepare(self) -> None:
        """Makes the run that nothing disturbs, and lists its marks."""
        subject.write(self.whole)
        self.server().run("--help", cwd=self.whole, timeout=LIMIT)  # imports TensorFlow, which is no part of a run
        began = time.monotonic()
        journal = self.whole / "marks.txt"
        done = self.run(self.whole, journal=str(journal))
        self.seconds = time.monotonic() - began
        self.limit = max(LIMIT, 20 * self.seconds)  # on a machine that has other things to do
        if done.returncode:
            raise RuntimeError(f"the undisturbed run ended with {done.returncode}:\n{done.stderr}")
        self.marks = journal.read_text().splitlines()

    def run(self, folder: Path, *flags: str, limit: float | None = None, **mark: Any) -> Done:
        """Runs the subject in `folder`; raises `subprocess.TimeoutExpired` after `limit` seconds, once it is killed."""
        limit = self.limit if limit is None else limit
        before = {"module": "tests.campaign.marks", "arguments": {"folder": str(folder / "run"), **mark}}
        return self.server().run(*subject.FLAGS, *flags, cwd=folder, timeout=limit, before=before)


class Bench:
    """What one case works with."""

    def __init__(self, lab: Lab, case: str, tally: Tally, repeat: str):
        self.lab, self.case, self.tally, self.repeat = lab, case, tally, repeat
        self.chance = random.Random(f"{lab.seed}/{case}")
        self.folder = lab.scratch / re.sub(r"\W+", "-", case)
        self._number = 0

    def new(self, template: Path | None = None) -> Path:
        """Makes a folder for one more run, like `template` if there is one."""
        self._number += 1
        folder = self.folder / str(self._number)
        if template is None:
            subject.write(folder)
        else:
            shutil.copytree(template, folder, symlinks=True)
        return folder

    def count(self, outcome: str) -> None:
        """Counts one trial by how it ended."""
        self.tally.count(outcome)

    def fail(self, text: str) -> None:
        """Notes what should never happen."""
        self.tally.fail(f"{self.case}: {text}\n    {self.repeat}")

    def run(self, folder: Path, *flags: str, codes: Sequence[int] = (0,), **mark: Any) -> Done:
        """Runs the subject to its own end, which must be one of `codes`, without a traceback."""
        try:
            done = self.lab.run(folder, *flags, **mark)
        except subprocess.TimeoutExpired as error:
            raise HungError(f"hangs: no end within {error.timeout:g} s; {last_line(error.stderr)}") from None
        if done.returncode not in codes:
            self.fail(f"ended with {done.returncode}, not {' or '.join(map(str, codes))}: {last_line(done.stderr)}")
        if "Traceback (most recent call last)" in done.stderr:
            self.fail(f"a traceback: {last_line(done.stderr)}")
        return done

    def readable(self, folder: Path) -> None:
        """Sees that no checkpoint is damaged."""
        warnings: list[str] = []
        try:
            checkpoint.newest(folder / "run" / "checkpoints", warn=warnings.append)
        except CheckpointError as error:
            warnings.append(str(error))
        for warning in warnings:
            self.fail(warning)

    def same(self, folder: Path, *, lost: str | None = None) -> bool:
        """Compares a finished run with the undisturbed one."""
        try:
            found = subject.differences(self.lab.whole / "run", folder / "run", lost=lost)
        except (OSError, json.JSONDecodeError, AssertionError) as error:
            found = [f"the workdir can't be compared: {error!r}"]
        if found:
            self.fail("; ".join(found[:4]))
        return not found


def last_line(text: Any) -> str:
    """Returns the end of what was said, for a line of the report."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text or "").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
