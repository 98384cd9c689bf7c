"""Runs steps for timing with a trainer and its real input, and discards the result."""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from core.cluster import joined
from core.disk import unfinished_folder
from core.distribution import Agreement
from core.engine import ALL_WELL
from core.measure import Program
from trainers.errors.tensorflow import compiled_or_refused, explained, repeatable_or_refused
from trainers.loop.bad_step import explain_bad_step
from trainers.session import Session
from trainers.trainer import Trainer

REAL_SECONDS, REAL_CHUNKS, PATIENCE_SECONDS = 0.3, 3, 20.0  # for a section of training with real input
FETCHED_AHEAD = 2  # chunks prefetched while none is used: one ready, one in progress


class Rehearsal:
    """A trainer whose steps are timed and whose weights are discarded."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.chunk_steps = trainer, trainer.input.chunk_steps
        began = time.perf_counter()
        self.stacked: Any = next(trainer.input.chunks_from(0))
        self._whole = Program(trainer.programs.make(self.stacked), trainer.progress, trainer.train_step.backend)
        self._seconds(self._whole, 0)  # XLA compiles at the first call
        self.traced = time.perf_counter() - began
        round_steps = trainer.settings.round_steps
        # All workers take equally many steps, although their clocks differ.
        seconds = min(self._seconds(self._whole, round_steps) for _ in range(2)) / round_steps
        (self.seconds_a_step,) = agreed([seconds], trainer.agreement)

    def real(
        self, seconds: float = REAL_SECONDS, *, chunks: int = REAL_CHUNKS, patience: float = PATIENCE_SECONDS
    ) -> tuple[float, float]:
        """Trains with real input. Returns the seconds that a step takes, and the seconds that a step waits for data.

        It trains for `seconds` and at least `chunks` chunks, but at most for `patience` seconds.
        """
        batches = self.trainer.input.chunks_from(0)
        calls = self.trainer.settings.parallel_calls
        for _ in range(FETCHED_AHEAD + (calls if calls > 1 else 0)):
            next(batches)
        began = time.perf_counter()
        self._take_chunk(next(batches), 0)
        (first,) = agreed([time.perf_counter() - began], self.trainer.agreement)
        count = max(math.ceil(seconds / first), chunks, 2 * calls)
        count = max(1, min(count, int(patience / first)))
        began, waited = time.perf_counter(), 0.0
        with futures.ThreadPoolExecutor(1) as thread:
            for i in range(count):
                before = time.perf_counter()
                stacked = next(batches)
                waited += time.perf_counter() - before
                if i + 1 < count:
                    batches.fetch_next(thread)
                self._take_chunk(stacked, 1 + i)
            passed = time.perf_counter() - began
        self.refuse_bad_step()
        return passed / (count * self.chunk_steps), waited / (count * self.chunk_steps)

    def refuse_bad_step(self) -> None:
        """Raises an error if a step was non-finite."""
        bad_step = int(self.trainer.progress.bad_step)
        if bad_step != ALL_WELL:
            raise explain_bad_step(self.trainer.train_step, self.trainer.input, bad_step)

    def _take_chunk(self, stacked: Any, number: int) -> float:
        """Runs a chunk with the run's step numbers, which phases with `every` depend on."""
        chunks = max(1, self.trainer.steps // self.chunk_steps)
        return self._seconds(self._whole, self.chunk_steps, stacked, first=number % chunks * self.chunk_steps)

    def _seconds(self, program: Program, steps: int, stacked: Any = None, *, first: int = 0) -> float:
        """Returns the seconds that `program` takes for `steps` steps of a chunk, by default the first chunk."""
        chunk = self.stacked if stacked is None else stacked
        repeatable = repeatable_or_refused(self.trainer.experiment.deterministic)
        with explained(self.trainer.input.source), repeatable, compiled_or_refused():
            return program.seconds(chunk, steps, first=first)


@contextlib.contextmanager
def in_a_scratch_folder(session: Session) -> Iterator[Path]:
    """Redirects all files of a run to a temporary folder, removed at the end; yields the run's own folder."""
    folder = session.workdir
    folder.create()
    scratch = unfinished_folder(folder.path, os.getpid())  # a later run removes it if this process is killed
    session.write_in(scratch)
    try:
        session.workdir.create()
        yield folder.path
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def divisor(number: int, *, most: int) -> int:
    """Returns the largest divisor of `number` up to `most`, or 1; it also divides intervals that `number` divides.

    >>> divisor(50, most=30), divisor(50, most=0)
    (25, 1)
    """
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)


NUMBERS_A_TEXT = 32  # for texts of 512 bytes


def agreed(numbers: Sequence[float], agreement: Agreement) -> list[float]:
    """Returns the chief's `numbers` on each worker, to nine digits. Every worker passes the same number of them."""
    found = list[float]()
    for first in range(0, len(numbers), NUMBERS_A_TEXT):
        text = " ".join(f"{x:.9g}" for x in numbers[first : first + NUMBERS_A_TEXT])
        found += map(float, (agreement.first_text(text) or "").split())
    return found


def of_each_replica(numbers: Sequence[float], agreement: Agreement) -> list[float]:
    """Returns one number per replica, each from the worker that has the replica."""
    own = _own(len(numbers))
    texts = [agreement.first_text(f"{x:.9g}" if i in own else None) for i, x in enumerate(numbers)]
    return [float(text or "nan") for text in texts]


def later_elsewhere(alone: Sequence[float]) -> float:
    """Returns how many seconds slower the slowest of all replicas is than the slowest one of this process."""
    return max(alone, default=0.0) - max((alone[i] for i in _own(len(alone))), default=0.0)


def _own(replicas: int) -> range:
    """Returns the indices of this process's replicas."""
    membership = joined()
    if membership is None:
        return range(replicas)
    cluster = membership.cluster
    return range(replicas * cluster.index // cluster.size, replicas * (cluster.index + 1) // cluster.size)
