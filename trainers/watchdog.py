"""Notices a section of the run that shows no life: a hook in an endless loop, a file system that never answers.

Heartbeats between workers come from a thread, and go on while the main thread hangs; the scheduler sees a process that
runs. So the main thread says what it begins, and each time that it gets ahead, and a thread of its own looks whether it
still does.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


class Watchdog:
    """Is told which section begins, and how it goes on. Until it is woken, that is all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._life: tuple[str, object] = ("set-up", object())  # told apart by identity
        self._asleep = threading.Event()

    def begin(self, section: str) -> None:
        """Notes that a section begins, as cheaply as can be."""
        self._life = (section, object())

    def alive(self) -> None:
        """Notes that the section gets ahead."""
        self._life = (self._life[0], object())

    @contextlib.contextmanager
    def awake(self, deadline: float | None, on_hang: Callable[[str], None]) -> Iterator[None]:
        """Calls `on_hang` once, in a thread, with the section that has shown no life for `deadline` seconds."""
        if deadline is None:
            yield
            return
        self._asleep.clear()
        watch = threading.Thread(target=self._watch, args=(deadline, on_hang), daemon=True, name="watchdog")
        watch.start()
        try:
            yield
        finally:
            self._asleep.set()

    def _watch(self, deadline: float, on_hang: Callable[[str], None]) -> None:
        pause = min(10.0, deadline / 8)
        seen, since, looked = self._life, self._clock(), self._clock()
        while not self._asleep.wait(pause):
            now = self._clock()
            # Where this thread itself was late, the process was stopped, or starved, or the machine slept.
            if self._life is not seen or now - looked > 2 * pause:
                seen, since = self._life, now
            looked = now
            if now - since > deadline:
                on_hang(seen[0])
                return
