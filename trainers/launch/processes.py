"""A child process: started, read, signalled and cleaned up."""

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

POLL_SECONDS = 0.1  # between checks of the processes; output is forwarded at once
PIPE = 1 << 20  # bytes, a pipe's largest capacity
# Imported before any fork, because importing in a forked process isn't safe.
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Command:
    """A command to start; `name` prefixes each line of the command's output."""

    name: str
    arguments: Sequence[str]  # including the program
    environment: Mapping[str, str]  # complete
    enter: Callable[[], None] = lambda: None  # called in the new process first
    follows: bool = False  # the chief, which receives signals for it and ends it
    spare: bool = False  # expendable: the others continue until it has restarted


class Signals:
    """Records signals within `with Signals() as signals:` instead of obeying them. `received` are stop requests."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._to_pass_on: list[int] = []

    def __enter__(self) -> "Signals":
        numbers = [signal.SIGTERM, signal.SIGINT, *WISHES]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # set by `nohup`
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._keep) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._to_pass_on.append(number)
        if number not in WISHES:  # others make workers save or print, and continue
            self.received.append(number)

    def new(self) -> list[int]:
        """Returns the signals received since the last call."""
        found, self._to_pass_on = self._to_pass_on, []
        return found

    def warned_within(self, seconds: float) -> bool:
        """Waits up to `seconds` for a SIGUSR1, or until a request to stop. Returns whether a SIGUSR1 came."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.received:
            if signal.SIGUSR1 in self.new():
                return True
            time.sleep(POLL_SECONDS)
        return False

    @property
    def kill(self) -> bool:
        """Returns whether Ctrl-C was pressed twice."""
        return self.received.count(signal.SIGINT) > 1


class Process:
    """A process in a separate session: Ctrl-C doesn't reach it, and its children are killed with the process."""

    def __init__(self, index: int, command: Command, selector: selectors.BaseSelector, out: BinaryIO, err: BinaryIO):
        self.index, self.overdue, self._ended = index, False, False
        parent = os.getpid()

        def begin() -> None:  # safe: the parent has a single thread
            command.enter()
            die_with(parent)  # after `enter`, because entering a namespace resets it

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
        """Kills the process and its children, even if the process is stopped or ignores signals."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills remaining children, forwards unread output and closes the pipes."""
        if self._ended:  # its process id may be reused
            return
        self.kill()
        self._popen.wait()
        self._ended = True
        for output in self._outputs:
            output.close()


class _Output:
    """One output stream of a process, forwarded line by line."""

    def __init__(self, pipe: IO[bytes], sink: BinaryIO, prefix: bytes, selector: selectors.BaseSelector):
        self.pipe, self.sink, self.prefix, self.selector = pipe, sink, prefix, selector
        self.rest = b""
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ, self)

    def pass_on(self) -> None:
        """Forwards the complete lines read so far. Keeps an incomplete line until its end arrives."""
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
        """Forwards the remaining output, without waiting for children that still hold the pipe open."""
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
    """Makes this new process die with `parent`."""
    for number in WISHES:
        signal.signal(number, signal.SIG_IGN)  # until its own handler is set
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died just before
            os._exit(1)
