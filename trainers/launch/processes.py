"""A process that is started, listened to and signalled, and leaves nothing behind."""

import contextlib
import ctypes
import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO, BinaryIO

from trainers.process.signals import WISHES

POLL_SECONDS = 0.1  # between two looks at the processes; their output is passed on at once
PIPE = 1 << 20  # bytes: no pipe holds more
# Found before any process is forked: a forked one can't safely import.
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Command:
    """What to start, and what to call it: its name stands before each of its lines."""

    name: str
    arguments: Sequence[str]  # the program's first
    environment: Mapping[str, str]  # the whole
    enter: Callable[[], None] = lambda: None  # called in the process before
    follows: bool = False  # another, who hears signals for it, and tells it when all is over
    spare: bool = False  # the others continue without it, until it has started again


class Signals:
    """Signals are kept, not obeyed, inside of `with Signals() as signals:`; `received` are those that ask to stop."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._to_pass_on: list[int] = []

    def __enter__(self) -> "Signals":
        numbers = [signal.SIGTERM, signal.SIGINT, *WISHES]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` leaves it
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._keep) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._to_pass_on.append(number)
        if number not in WISHES:  # workers save, or are looked at, and continue
            self.received.append(number)

    def new(self) -> list[int]:
        """Returns those that came since this was last called."""
        found, self._to_pass_on = self._to_pass_on, []
        return found

    def warned_within(self, seconds: float) -> bool:
        """Waits for a SIGUSR1, which is the caller's own while nothing runs; one that asks to stop ends the wait."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.received:
            if signal.SIGUSR1 in self.new():
                return True
            time.sleep(POLL_SECONDS)
        return False

    @property
    def kill(self) -> bool:
        """Says whether someone pressed Ctrl-C twice."""
        return self.received.count(signal.SIGINT) > 1


class Process:
    """A process in a session of its own: a Ctrl-C in the terminal doesn't reach it, and its children die with it."""

    def __init__(self, index: int, command: Command, selector: selectors.BaseSelector, out: BinaryIO, err: BinaryIO):
        self.index, self.overdue, self._ended = index, False, False
        parent = os.getpid()

        def begin() -> None:  # there is but one thread here to trip over
            command.enter()
            die_with(parent)  # only now: to enter another namespace would undo it

        self._popen = subprocess.Popen(
            command.arguments,
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=begin,
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        prefix = f"[{command.name}] ".encode()
        pipes = [(self._popen.stdout, out), (self._popen.stderr, err)]
        self._outputs = [_Output(pipe, sink, prefix, selector) for pipe, sink in pipes]

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kills it with its children, also if it is stopped or deaf to everything else."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> None:
        """Leaves nothing of it: no child, no unread line, no pipe."""
        if self._ended:  # its number may be another's by now
            return
        self.kill()
        self._popen.wait()
        self._ended = True
        for output in self._outputs:
            output.close()


class _Output:
    """One of a process's two streams, passed on line by line."""

    def __init__(self, pipe: IO[bytes], sink: BinaryIO, prefix: bytes, selector: selectors.BaseSelector):
        self.pipe, self.sink, self.prefix, self.selector = pipe, sink, prefix, selector
        self.rest = b""
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ, self)

    def pass_on(self) -> None:
        """Passes on what has come; a line that isn't whole yet has to wait."""
        if self.pipe.closed:
            return
        try:
            chunk = os.read(self.pipe.fileno(), PIPE)
        except BlockingIOError:
            return
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self._write(lines)
        if not chunk:
            self._end()

    def close(self) -> None:
        """Passes the rest on. A child that fled from the session may hold the pipe open for ever: it isn't awaited."""
        self.pass_on()
        self._end()

    def _end(self) -> None:
        if not self.pipe.closed:
            self.selector.unregister(self.pipe)
            self.pipe.close()
            self._write([self.rest] if self.rest else [])

    def _write(self, lines: Sequence[bytes]) -> None:
        if lines:
            self.sink.write(b"".join(self.prefix + line + b"\n" for line in lines))
            self.sink.flush()


def die_with(parent: int) -> None:
    """Lets this new process be killed whenever `parent` is."""
    for number in WISHES:
        signal.signal(number, signal.SIG_IGN)  # until it has come so far as to hear it
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # killed just before
            os._exit(1)
