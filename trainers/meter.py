"""How fast training goes, and how much of the time it waits for data."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Meter:
    """Times training from one metric line to the next, leaving out what happens in pauses (evaluation, checkpoints)."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self.restart()

    def restart(self) -> None:
        """Starts counting from here."""
        self.steps, self._began, self._waited, self._paused = 0, self.clock(), 0.0, 0.0
        self._pause_began: float | None = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the wait for data."""
        began = self.clock()
        yield
        self._waited += self.clock() - began

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Around what isn't training."""
        began = self._pause_began = self.clock()
        yield
        self._pause_began = None
        self._paused += self.clock() - began

    def take(self, examples_per_step: int) -> dict[str, float]:
        """Speed and the fraction of time spent waiting, since the last call; then starts anew."""
        now = self.clock() if self._pause_began is None else self._pause_began
        busy = max(now - self._began - self._paused, 1e-9)
        figures = {
            "examples_per_second": self.steps * examples_per_step / busy,
            "step_seconds": busy / max(self.steps, 1),
            "data_wait": min(self._waited / busy, 1.0),
        }
        self.steps, self._began, self._waited, self._paused = 0, now, 0.0, 0.0
        return figures
