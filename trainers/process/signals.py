"""Signals as wishes that the loop grants between chunks, instead of an interruption anywhere.

| signal | while setting up | once the loop has begun |
| --- | --- | --- |
| SIGTERM, SIGHUP | ends at once with 75 | saves, and ends with 75 |
| SIGINT (Ctrl-C) | ends at once with 130 | the first one as SIGTERM; a second one ends at once with 130 |
| SIGUSR1 | is remembered | saves, and goes on |
| SIGUSR2 | is remembered | profiles the next chunk, and goes on |

A SIGHUP that was ignored before, as `nohup` does it, is left ignored. On the way out after an interruption the next
signal, whichever, ends the process there and then; one that isn't this run's own (a notebook) it interrupts once more.
A checkpoint is whole or not there at all in any case.
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


class InterruptedBySignal(KeyboardInterrupt):  # no `Exception`: nobody's `except Exception` may keep it
    """Ends the command at once, with one line and `exit_code`."""

    def __init__(self, text: str, exit_code: int):
        super().__init__(text)
        self.exit_code = exit_code


class Preemption:
    """Remembers what signals have asked of this process, which they may end unless it is for more than this run."""

    def __init__(self, *, ends_process: bool = True) -> None:
        self._ends_process = ends_process
        self.signal: int | None = None  # which one has asked it to leave, if any
        self._wishes, self._taken = dict.fromkeys(WISHES, 0), dict.fromkeys(WISHES, 0)
        self._in_loop = False
        self._interruption: InterruptedBySignal | None = None  # of a process that is on its way out
        self._too_early: CodeType | None = None  # a signal that interrupts this code is sent once more
        self._heard = 0  # signals, whatever they led to

    @property
    def name(self) -> str:
        """Returns the signal's name; where this process got none, another worker did."""
        return signal.Signals(self.signal).name if self.signal else "a signal to another worker"

    @property
    def before_first_step(self) -> str:
        """Says that the signal came before the first step."""
        return (
            f"stopped by {self.name} before the first step: nothing has changed since the last checkpoint, if there is "
            "one. Run the same command again to go on."
        )

    def take_wish(self, number: signal.Signals) -> bool:
        """Returns whether this signal, one of `WISHES`, came since this was last called."""
        before, self._taken[number] = self._taken[number], self._wishes[number]  # one that comes now counts next time
        return self._taken[number] > before

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hears signals; until `granted` has been entered, those that ask to leave are obeyed at once.

        Only the main thread of a process is ever told of signals: in another there is nothing to hear.
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
            """Has a signal come again whose interruption came where Python ignores all that is raised, as in `gc`."""
            if self._interruption is None or what.exc_value is not self._interruption or self.signal is None:
                whole(what)
                return
            self._interruption = None
            again = threading.Thread(target=self._send_again, args=(signal.Signals(self.signal),), daemon=True)
            with held_back(signal.SIGTERM):  # by this thread
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
        """Hears signals as wishes; what comes after the loop, when all is saved, finds nothing left to ask for."""
        self._in_loop = True
        with self.heard():
            yield

    @contextlib.contextmanager
    def obeyed(self) -> Iterator[None]:
        """Raises an interruption in place of the error that TensorFlow makes of it if an operation fails just then."""
        try:
            yield
        except Exception as error:
            if self._interruption is None:
                raise
            raise self._interruption from error

    def _send_again(self, number: signal.Signals) -> None:
        """Sends the main thread a signal, once more for each time that it interrupts the hook that asked for it."""
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
            return  # what is raised there is ignored again, and nothing would be told of it
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
                "command again to go on from there.",
            )
        elif self.signal is None or number == signal.SIGINT:  # a scheduler may say it several times
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
    """Ignores wishes in what has nothing to save and takes no steps: unheard they would kill the process."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in WISHES}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
