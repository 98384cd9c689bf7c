"""Processes that live and die together: started, listened to, signalled, and none left behind.

All of it happens in one thread, so lines never mix, and a signal finds everything between two looks at the processes.
"""

import contextlib
import ctypes
import dataclasses
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO, BinaryIO

POLL_SECONDS = 0.1  # between two looks at the processes; their output is passed on at once
PIPE = 1 << 20  # bytes: no pipe holds more
# Found before any process is forked: a forked one can't safely import.
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Command:
    """What to start: the program with its arguments, the whole environment, and what to call in the process before."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    enter: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a worker ended. A negative code is the signal that killed it."""

    index: int
    code: int
    overdue: bool = False  # it didn't end when the others had, and was killed for it


class Signals:
    """Signals are kept, not obeyed, inside of `with Signals() as signals:`; `received` are those that ask to stop."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._to_pass_on: list[int] = []

    def __enter__(self) -> "Signals":
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` leaves it
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._keep) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._to_pass_on.append(number)
        if number != signal.SIGUSR1:  # by which workers save and go on
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


def run_together(
    commands: Sequence[Command], *, deadline: float, signals: Signals, out: BinaryIO, err: BinaryIO
) -> list[Ending]:
    """Runs all to their ends, which it returns in the order they came.

    Once one has failed, or all that ended have finished, the others have `deadline` seconds left.
    """
    endings: list[Ending] = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        running = []
        for i, command in enumerate(commands):
            running.append(_Worker(i, command, selector, out, err))
            stack.callback(running[-1].end)
        started = ", ".join(f"worker {worker.index} (process {worker.process.pid})" for worker in running)
        out.write(f"started {started}\n".encode())
        out.flush()
        until = math.inf
        while running:
            for key, _ in selector.select(POLL_SECONDS):
                key.data.pass_on()
            overdue = time.monotonic() > until
            for worker in list(running):
                code = worker.process.poll()
                if code is None:
                    continue
                worker.end()
                running.remove(worker)
                if all(ending.code == 0 for ending in endings):
                    until = time.monotonic() + deadline
                endings.append(Ending(worker.index, code, worker.overdue and code == -signal.SIGKILL))
            for number in signals.new():
                for worker in running:
                    worker.process.send_signal(number)
            if overdue or signals.kill:
                for worker in running:
                    worker.overdue = overdue
                    worker.kill()
    return endings


class _Worker:
    """A process in a session of its own: a Ctrl-C in the terminal doesn't reach it, and its children die with it."""

    def __init__(self, index: int, command: Command, selector: selectors.BaseSelector, out: BinaryIO, err: BinaryIO):
        self.index, self.overdue, self.ended = index, False, False
        parent = os.getpid()

        def begin() -> None:  # there is but one thread here to trip over
            command.enter()
            _die_with(parent)  # only now: to enter another namespace would undo it

        self.process = subprocess.Popen(
            command.arguments,
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=begin,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        prefix = f"[worker {index}] ".encode()
        pipes = [(self.process.stdout, out), (self.process.stderr, err)]
        self.outputs = [_Output(pipe, sink, prefix, selector) for pipe, sink in pipes]

    def kill(self) -> None:
        """Kills it with its children, also if it is stopped or deaf to everything else."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Leaves nothing of it: no child, no unread line, no pipe."""
        if self.ended:  # its number may be another's by now
            return
        self.kill()
        self.process.wait()
        self.ended = True
        for output in self.outputs:
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


def _die_with(parent: int) -> None:
    """Lets this new process be killed whenever `parent` is."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until it has come so far as to hear it
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # killed just before
            os._exit(1)


def describe_signal(number: int) -> str:
    """Returns `SIGKILL` for 9."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
