"""The step scheduler of asynchronous training. The chief schedules bundles of consecutive steps on workers."""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from core.cluster.server_pool import missing_workers
from core.errors import PeerLostError
from core.parallel.parameter_server.state import NOBODY, WINDOW
from core.parallel.parameter_server.strategy import ServedStrategy
from core.task import Batch

AHEAD = 2  # bundles per worker: one in progress and one waiting, so that settling never takes long
MOST = 64  # steps of a bundle
_BUNDLE_SECONDS = 0.1  # of work per bundle: scheduling one costs chief and worker some milliseconds of a core
_LOOK_SECONDS = 0.1  # between two checks of the servers' state

_RESTART = (
    "Start all processes again; they resume from the last checkpoint (`python -m trainers.launch --max_restarts=N` "
    "does that)."
)


class _Bundle(NamedTuple):
    """Consecutive steps that are scheduled together. One worker runs them in order."""

    batches: Batch
    steps: int
    since: float
    begun: float  # when it came among the oldest, one per worker; bundles behind these are waiting, not slow


class Handout:
    """Schedules bundles of steps on workers. Each bundle is a call of `take(batches, first)`.

    `take` ends once its steps are done, or once the servers accept no more writes. `look()` returns the step whose
    write was interrupted.
    """

    def __init__(self, strategy: ServedStrategy, take: Any, look: Callable[[], tf.Tensor]):
        self._strategy, self._take, self._look = strategy, take, look
        self._out: dict[int, _Bundle] = {}  # by their first step
        self._back: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.size = 1  # of the next bundle
        self._looked = self._moved = time.monotonic()  # `_moved`: when a bundle last came back, or the first went out

    def hand_out(self, begin: int, end: int, batches_of: Callable[[int, int], Batch]) -> None:
        """Schedules the steps from `begin` up to `end`. If too many bundles are unfinished, a bundle waits."""
        while begin < end:
            while not self._has_room(begin):
                self._wait()
            steps = min(self.size, end - begin)
            self._schedule(begin, batches_of(begin, begin + steps), steps)
            begin += steps

    def settle(self) -> None:
        """Waits until every scheduled step is done, then checks for errors."""
        while self._out:
            self._wait()
        self.look()

    def look(self) -> None:
        """Raises the errors of steps, and a `PeerLostError` if a worker was lost during a write."""
        with naming_lost_servers():
            self._strategy.coordinator.done()
            pushing = int(self._look())
        if pushing != NOBODY:
            raise PeerLostError(
                f"a worker was lost amid its push of step {pushing}, and weights are half written. {_RESTART}"
            )
        self._looked = time.monotonic()

    def _has_room(self, step: int) -> bool:
        # A step takes the slot of the one `WINDOW` earlier in the servers' state.
        oldest = min(self._out, default=step)
        return len(self._out) < AHEAD * self._strategy.workers and step + MOST <= oldest + WINDOW

    def _wait(self) -> None:
        """Waits briefly for a bundle to finish, and schedules overdue bundles again."""
        with contextlib.suppress(queue.Empty):
            bundle = self._out.pop(self._back.get(timeout=_LOOK_SECONDS), None)
            if bundle:  # None for the second copy of a bundle that was scheduled again
                step_seconds = (time.monotonic() - bundle.begun) / bundle.steps
                self.size = min(max(1, int(_BUNDLE_SECONDS / step_seconds)), 2 * self.size, MOST)
                self._moved = time.monotonic()
                self._begin()
        now = time.monotonic()
        if now - self._moved > self._strategy.meeting_deadline and (missing := missing_workers()):
            raise PeerLostError(
                f"no step was done for {self._strategy.meeting_deadline:g} s (`parameter_server.meeting_deadline`), "
                f"while {', '.join(missing)} didn't return: TensorFlow admits no worker before all are there. "
                f"{_RESTART}"
            )
        for first, bundle in self._out.items():
            if now - bundle.begun > self._strategy.overdue:  # its worker is stopped, slow or lost: another may try
                self._schedule(first, bundle.batches, bundle.steps)
        if now - self._looked > _LOOK_SECONDS:
            self.look()

    def _schedule(self, first: int, batches: Batch, steps: int) -> None:
        if not self._out:
            self._moved = time.monotonic()
        with naming_lost_servers():
            handle = self._strategy.coordinator.schedule(self._take, args=(batches, tf.constant(first, tf.int64)))
        self._out[first] = _Bundle(batches, steps, time.monotonic(), math.inf)
        self._begin()
        threading.Thread(target=self._await, args=(handle, first), daemon=True, name=f"steps from {first}").start()

    def _begin(self) -> None:
        """Sets the start time of the oldest bundles, one per worker. Workers are running these now."""
        for first, bundle in list(self._out.items())[: self._strategy.workers]:
            if bundle.begun == math.inf:
                self._out[first] = bundle._replace(begun=time.monotonic())

    def _await(self, handle: Any, first: int) -> None:
        with contextlib.suppress(tf.errors.OpError):  # raised by the coordinator
            handle.get()
            self._back.put(first)


@contextlib.contextmanager
def naming_lost_servers() -> Iterator[None]:
    """In its `with` block, TensorFlow's error for a lost server becomes a `PeerLostError`."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
        raise PeerLostError(f"a parameter server was lost ({str(error).splitlines()[0][:200]}). {_RESTART}") from error
