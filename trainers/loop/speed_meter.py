"""The figures of a metric line: means since the last line, how fast training goes, and how much it waits for data."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from core.task.loss import GRADIENT_NORM, Sums, means


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
        """Times the wait for data, around it."""
        began = self.clock()
        yield
        self._waited += self.clock() - began

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out what isn't training, around it."""
        began = self._pause_began = self.clock()
        yield
        self._pause_began = None
        self._paused += self.clock() - began

    def figures(self, examples_per_step: int) -> dict[str, float]:
        """Returns speed and the fraction of time spent waiting, since the last `take`."""
        busy = max(self._now() - self._began - self._paused, 1e-9)
        return {
            "examples_per_second": self.steps * examples_per_step / busy,
            "step_seconds": busy / max(self.steps, 1),
            "data_wait": min(self._waited / busy, 1.0),
        }

    def take(self, examples_per_step: int) -> dict[str, float]:
        """Returns the same; then starts anew."""
        figures = self.figures(examples_per_step)
        self.steps, self._began, self._waited, self._paused = 0, self._now(), 0.0, 0.0
        return figures

    def _now(self) -> float:
        """Returns the time at which training last went on."""
        return self.clock() if self._pause_began is None else self._pause_began


def figures_of(sums: Mapping[str, Sums]) -> dict[str, float]:
    """Returns the weighted means of updates' sums: those of one update by their own names, of several by phase.

    Of two updates, the norms of their gradients are compared as well: the second's over the first's.
    """
    if len(sums) == 1:
        return means(next(iter(sums.values())))
    found = {f"{phase}/{name}": x for phase, figures in sums.items() for name, x in means(figures).items()}
    first, *others = (found[f"{phase}/{GRADIENT_NORM}"] for phase in sums)
    if len(others) == 1 and first > 0.0:  # of two players, does one run away from the other?
        found[f"{GRADIENT_NORM}_ratio"] = others[0] / first
    return found
