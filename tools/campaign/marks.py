"""Watches a process from within: numbers each change that Python makes in a folder, and acts before a chosen one.

CPython announces what opens, renames or removes a file to audit hooks, before it happens (PEP 578). A mark is such an
event, as in `rename checkpoints/step-000000020 #1`, the first of that name in this process; or a section that the code
under test announces by `sys.audit("section", name)`. What TensorFlow's C++ writes has no marks of its own.
"""

import contextlib
import errno
import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests import rights

MEMORY = 6 << 30  # bytes; a run of the subject takes a tenth of it
LINGER = 0.5  # seconds, in which the subject takes many steps

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {  # where in the event's arguments the path stands, and the descriptor of the folder that it is relative to
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.rename": (1, 3),
    "os.truncate": (0, None),
    "os.fsync": (0, None),
}
_CREATES = ("open", "mkdir", "fsync")  # what a full disk refuses; names can still be changed and removed


def begin(
    folder: str,
    journal: str | None = None,
    at: str | None = None,
    act: str = "",
    values: Sequence[Any] = (),
    largest_file: int | None = None,
    plain_user: bool = False,
) -> None:
    """Lists the marks in `journal`, and does `act` with these values before the mark `at`.

    The process gets a bound on its memory: one that reads without an end is to fail, not the machine.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if plain_user:
        rights.give_up()
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if journal else None
    marks = Marks(folder, at, ACTS[act](*values) if act else lambda name: None, lasts=act == "fill_disk")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        name = marks.named(event, arguments)
        if name is not None:
            if out is not None:
                os.write(out, f"{marks.numbered(name)}\n".encode())
            marks.pass_by(name)

    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        sys.audit("os.fsync", os.readlink(f"/proc/self/fd/{descriptor}"))  # which CPython itself doesn't announce
        real_fsync(descriptor)

    os.fsync = fsync
    sys.addaudithook(hook)


class Marks:
    """Counts the marks of one process, and calls `act` at the chosen one; where it is to last, at all that follow."""

    def __init__(self, folder: str, at: str | None, act: Callable[[str], None], *, lasts: bool = False):
        self.folder, self.at, self.act, self.lasts = os.path.abspath(folder), at, act, lasts
        self.counts: Counter[str] = Counter()
        self.begun = False

    def named(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """Returns the name of an event that is a mark."""
        if event == "section":
            return f"section {arguments[0]}"
        verb, path = _change(event, arguments)
        if not verb or not isinstance(path, str | bytes | os.PathLike):
            return None
        place = os.path.abspath(os.fsdecode(path))
        if place != self.folder and not place.startswith(self.folder + os.sep):
            return None
        place = os.path.relpath(place, self.folder).replace(str(os.getpid()), "PID")
        return f"{verb} {re.sub(r'tfevents.*', 'tfevents', place)}"

    def numbered(self, name: str) -> str:
        """Returns what the next mark of this name is called."""
        return f"{name} #{self.counts[name] + 1}"

    def pass_by(self, name: str) -> None:
        """Acts, if it is time to."""
        chosen = self.numbered(name) == self.at
        self.counts[name] += 1
        self.begun |= chosen
        if chosen or (self.begun and self.lasts):
            self.act(name)


def _change(event: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Returns what is done to which path; an empty verb for what changes nothing."""
    if event == "open":
        path, _, flags = arguments
        return ("open" if flags & _WRITES else ""), path
    if event in _CHANGES:
        path, folder = (arguments[i] if i is not None else -1 for i in _CHANGES[event])
        if folder != -1:  # `shutil.rmtree` names what it removes relative to an open folder
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        return event.removeprefix("os."), path
    return "", None


def kill() -> Callable[[str], None]:
    """Makes what ends this process by SIGKILL."""
    return lambda name: os.kill(os.getpid(), signal.SIGKILL)


def kill_after(seconds: float) -> Callable[[str], None]:
    """Makes what ends it some time later, by a timer of the kernel's: C++ that holds Python up can't put it off."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # here: a mark in the thread that writes may set no handler

    def act(name: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    return act


def send(*numbers: int) -> Callable[[str], None]:
    """Makes what sends this process signals, one after the other; what comes of the first stops no other."""

    def act(name: str) -> None:
        with contextlib.ExitStack() as stack:
            for number in reversed(numbers):
                stack.callback(os.kill, os.getpid(), number)

    return act


def send_and_linger(*numbers: int) -> Callable[[str], None]:
    """Makes what sends signals out of another thread, which then goes on only when the main one has heard them."""

    def act(name: str) -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(LINGER)

    return act


def fill_disk() -> Callable[[str], None]:
    """Makes what refuses to create anything, as a full disk does."""

    def act(name: str) -> None:
        verb, _, path = name.partition(" ")
        if verb in _CREATES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    return act


ACTS: dict[str, Callable[..., Callable[[str], None]]] = {
    "kill": kill,
    "kill_after": kill_after,
    "send": send,
    "send_and_linger": send_and_linger,
    "fill_disk": fill_disk,
}
