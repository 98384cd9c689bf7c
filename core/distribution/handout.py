"""The chief's part of asynchronous training: it hands out steps by number, and sees how far the servers have come."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from core.distribution.served_book import NOBODY
from core.distribution.served_strategy import ServedStrategy
from core.errors import PeerLostError

AHEAD = 2  # steps for each worker: one that it takes and one that waits, so that to settle never takes long
_LOOK_SECONDS = 0.001  # between two looks

_RESTART = (
    "All have to start again, and go on from the last checkpoint (`python -m trainers.launch --max_restarts=N` does "
    "that)."
)


class _Out(NamedTuple):
    """A step that is handed out."""

    batch: Any
    since: float
    handle: Any  # which TensorFlow forgets the step without


class Handout:
    """Steps that workers take: `take(batch, step)`, whose outcome stands in the servers' books."""

    def __init__(self, strategy: ServedStrategy, take: Any, look: Callable[[tf.Tensor], tf.Tensor]):
        self._strategy, self._take, self._look = strategy, take, look
        self._out: dict[int, _Out] = {}
        self._most = AHEAD * strategy.workers

    def hand_out(self, step: int, batch: Any) -> None:
        """Hands out a step, as soon as few enough are out."""
        while len(self._out) >= self._most:
            self.look()
        self._schedule(step, batch)

    def settle(self) -> None:
        """Returns when every step that was handed out is done: then nothing is under way that still counts."""
        while self._out:
            self.look()

    def look(self) -> None:
        """Sees which steps are done, and hands out again those that are overdue."""
        with naming_lost_servers():
            numbers = (list(self._out) + [0] * self._most)[: self._most]
            bad_step, pushing, *done = self._look(tf.constant(numbers, tf.int64)).numpy().tolist()
            if pushing != NOBODY:
                raise PeerLostError(
                    f"a worker was lost amid its push of step {pushing}, and weights are half written. {_RESTART}"
                )
            finished = [step for step, yes in zip(self._out, done, strict=False) if yes]
            if bad_step != NOBODY:
                finished = list(self._out)  # nothing is written any more, and the run ends
            for step in finished:
                del self._out[step]
            now = time.monotonic()
            for step, out in self._out.items():
                if now - out.since > self._strategy.overdue:  # its worker is stopped, slow or lost: another may try
                    self._schedule(step, out.batch)
            self._strategy.coordinator.done()  # raises what a step has raised
        if not finished:
            time.sleep(_LOOK_SECONDS)

    def _schedule(self, step: int, batch: Any) -> None:
        with naming_lost_servers():
            handle = self._strategy.coordinator.schedule(self._take, args=(batch, tf.constant(step, tf.int64)))
        self._out[step] = _Out(batch, time.monotonic(), handle)


@contextlib.contextmanager
def naming_lost_servers() -> Iterator[None]:
    """Turns TensorFlow's error of a server that is gone into one that says so."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
        raise PeerLostError(f"a parameter server was lost ({str(error).splitlines()[0][:200]}). {_RESTART}") from error
