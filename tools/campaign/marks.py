"""Watches a process from within: numbers each change that Python makes in a folder, and acts before a chosen one.

CPython announces what opens, renames or removes a file to audit hooks, before it happens (PEP 578). A mark is such an
event, as in `rename checkpoints/step-000000020 #1`, the first of that name in this process; or a section that the code
under test announces by `sys.audit("section", name)`. Writes of TensorFlow's C++ have no marks.
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

MEMORY = 6 << 30  # bytes; the subject's run needs a tenth of it
LINGER = 0.5  # seconds, in which the subject takes many steps

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {  # positions of the path in the event's arguments, and of the descriptor of its parent folder
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.rename": (1, 3),
    "os.truncate": (0, None),
    "os.fsync": (0, None),
}
_CREATES = ("open", "mkdir", "fsync")  # operations that a full disk refuses; names can still be changed and removed


def begin(
    folder: str,
    journal: str | None = None,
    at: str | None = None,
    act: str = "",
    values: Sequence[Any] = (),
    largest_file: int | None = None,
    plain_user: bool = False,
) -> None:
    """Lists the marks in `journal`, and calls `act` with these values before the mark `at`.

    The process gets a memory limit: an endless read must fail without harm to the machine.
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
    """Counts the marks of one process, and calls `act` at the chosen one; a lasting act also at all later ones."""

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
        """Returns the name of the next mark of this kind, with its number."""
        return f"{name} #{self.counts[name] + 1}"

    def pass_by(self, name: str) -> None:
        """Acts if the chosen mark is reached."""
        chosen = self.numbered(name) == self.at
        self.counts[name] += 1
        self.begun |= chosen
        if chosen or (self.begun and self.lasts):
            self.act(name)


def _change(event: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Returns the verb and the path; an empty verb for an event that changes nothing."""
    if event == "open":
        path, _, flags = arguments
        return ("open" if flags & _WRITES else ""), path
    if event in _CHANGES:
        path, folder = (arguments[i] if i is not None else -1 for i in _CHANGES[event])
        if folder != -1:  # `shutil.rmtree` names paths relative to an open folder
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        return event.removeprefix("os."), path
    return "", None


def kill() -> Callable[[str], None]:
    """Makes an act that ends this process with SIGKILL."""
    return lambda name: os.kill(os.getpid(), signal.SIGKILL)


def kill_after(seconds: float) -> Callable[[str], None]:
    """Makes an act that kills some time later, with a kernel timer: C++ that holds the GIL can't delay it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # here: a thread that writes may not set handlers

    def act(name: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    return act


def send(*numbers: int) -> Callable[[str], None]:
    """Makes an act that sends this process all signals in sequence, whatever an earlier one causes."""

    def act(name: str) -> None:
        with contextlib.ExitStack() as stack:
            for number in reversed(numbers):
                stack.callback(os.kill, os.getpid(), number)

    return act


def send_and_linger(*numbers: int) -> Callable[[str], None]:
    """Makes an act that sends signals from another thread, and waits until the main thread has handled them."""

    def act(name: str) -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(LINGER)

    return act


def fill_disk() -> Callable[[str], None]:
    """Makes an act that refuses to create any file, as a full disk does."""

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
