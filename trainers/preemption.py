"""SIGTERM and Ctrl-C as a wish that the loop grants between chunks, instead of an interruption anywhere."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Preemption:
    """Remembers which signal has asked this process to leave, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def name(self) -> str:
        """Returns the signal's name; where this process got none, another worker did."""
        return signal.Signals(self.signal).name if self.signal else "a signal to another worker"

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Remembers the first SIGTERM or Ctrl-C; a second one interrupts at once."""

        def remember(number: int, _: FrameType | None) -> None:
            self.signal = number
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

        previous = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
