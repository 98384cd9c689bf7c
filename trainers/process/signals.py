"""Signal handling: the loop acts on signals between chunks, instead of being interrupted anywhere.

| signal | while setting up | once the loop has begun |
| --- | --- | --- |
| SIGTERM, SIGHUP | ends at once with 75 | saves, and ends with 75 |
| SIGINT (Ctrl-C) | ends at once with 130 | the first one as SIGTERM; a second one ends at once with 130 |
| SIGUSR1 | is recorded | saves, and goes on |
| SIGUSR2 | is recorded | profiles the next chunk, and goes on |

A SIGHUP ignored by the parent, as with `nohup`, stays ignored. After an interruption, the next stopping signal of any
kind ends the process at once. In a notebook's process, it raises the interruption again. A checkpoint is always
complete or absent.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType

from core.errors import INTERRUPTED, PreemptedError
from core.signals import held_back

STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
WISHES = (signal.SIGUSR1, signal.SIGUSR2)
AGAIN_SECONDS = 0.001


class InterruptedBySignal(KeyboardInterrupt):  # no `Exception`, so that `except Exception` doesn't catch it
    """Ends the command at once, with one line and `exit_code`."""

    def __init__(self, text: str, exit_code: int):
        super().__init__(text)
        self.exit_code = exit_code


class Preemption:
    """Records this process's signals. Without `ends_process`, as in a notebook, a signal never ends the process."""

    def __init__(self, *, ends_process: bool = True) -> None:
        self._ends_process = ends_process
        self.signal: int | None = None  # the one that asks to stop, if any
        self._wishes, self._taken = dict.fromkeys(WISHES, 0), dict.fromkeys(WISHES, 0)
        self._in_loop = False
        self._interruption: InterruptedBySignal | None = None  # raised once, while the process ends
        self._too_early: CodeType | None = None  # a signal during this code is sent again
        self._heard = 0  # number of signals received

    @property
    def name(self) -> str:
        """Returns the name of the signal that this process got, or says that another worker got a signal."""
        return signal.Signals(self.signal).name if self.signal else "a signal to another worker"

    @property
    def before_first_step(self) -> str:
        """Returns the message for a signal before the first step."""
        return (
            f"stopped by {self.name} before the first step: nothing has changed since the last checkpoint, if there is "
            "one. Run the same command again to resume."
        )

    def take_wish(self, number: signal.Signals) -> bool:
        """Returns whether this signal, one of `WISHES`, came since the last call."""
        before, self._taken[number] = self._taken[number], self._wishes[number]  # a signal from now on counts next time
        return self._taken[number] > before

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Handles signals within the block; until `granted` is entered, requests to stop are obeyed at once.

        Python delivers signals only to the main thread; in another thread this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [*STOPPING, *WISHES]
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        previous = {number: signal.signal(number, self._hear) for number in numbers}
        whole = sys.unraisablehook

        def ignored(what: "sys.UnraisableHookArgs") -> None:
            """Sends a signal again, if Python ignored its interruption, as it does in `gc`."""
            if self._interruption is None or what.exc_value is not self._interruption or self.signal is None:
                whole(what)
                return
            self._interruption = None
            again = threading.Thread(target=self._send_again, args=(signal.Signals(self.signal),), daemon=True)
            with held_back(signal.SIGTERM):  # in this thread
                again.start()

        self._too_early = ignored.__code__
        sys.unraisablehook = ignored
        try:
            yield
        finally:
            sys.unraisablehook = whole
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def granted(self) -> Iterator[None]:
        """Records signals for the loop until the block ends. Later signals have no effect, because all is saved."""
        self._in_loop = True
        with self.heard():
            yield

    @contextlib.contextmanager
    def obeyed(self) -> Iterator[None]:
        """Raises a signal's interruption in place of the TensorFlow error that the signal caused."""
        try:
            yield
        except Exception as error:
            if self._interruption is None:
                raise
            raise self._interruption from error

    def _send_again(self, number: signal.Signals) -> None:
        """Sends the signal `number` to the main thread, again and again until it raises an interruption."""
        while self._interruption is None:
            before = self._heard
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            while self._heard == before:
                time.sleep(AGAIN_SECONDS)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        if number in WISHES:
            self._wishes[signal.Signals(number)] += 1
        elif self._too_early and any(interrupted.f_code is self._too_early for interrupted in _callers(frame)):
            return  # exceptions are ignored there
        elif self._interruption is not None:
            if self._ends_process:
                os._exit(self._interruption.exit_code)
            raise self._interruption
        elif not self._in_loop:
            self.signal = number
            self._leave(number, self.before_first_step)
        elif number == self.signal == signal.SIGINT:
            self._leave(
                number,
                "interrupted by a second Ctrl-C: steps since the last checkpoint, if any, are lost. Run the same "
                "command again to resume from there.",
            )
        elif self.signal is None or number == signal.SIGINT:  # schedulers may repeat it
            self.signal = number

    def _leave(self, number: int, text: str) -> None:
        self.signal = number
        exit_code = INTERRUPTED if number == signal.SIGINT else PreemptedError.exit_code
        self._interruption = InterruptedBySignal(text, exit_code)
        raise self._interruption


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


@contextlib.contextmanager
def without_wishes() -> Iterator[None]:
    """Ignores SIGUSR1 and SIGUSR2 in modes without steps, in which they would kill the process."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in WISHES}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
