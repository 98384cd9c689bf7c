"""What a run reads: the batches of its steps, as chunks for the loop or one by one for whoever looks closer."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data import PerReplica, position_indices, train_chunks
from core.distribution import MeshStrategy
from core.errors import NoRoomError
from core.machine import machine_memory
from core.task import Batch
from trainers.diagnosis import explained
from trainers.experiment import Experiment
from trainers.settings import Settings


class Chunks:
    """Chunks of batches, one after the other, for a loop that may be asked for the next before it takes it."""

    def __init__(self, chunks: Iterator[Any]):
        self._chunks, self._taken, self._ahead = chunks, list[Any](), list[Any]()

    def __iter__(self) -> "Chunks":
        return self

    def __next__(self) -> Any:
        self._taken = [self._ahead.pop() if self._ahead else next(self._chunks)]
        return self._taken[0]

    def peek(self, *, within: bool) -> Any:
        """Returns the chunk that the next step is in, and leaves it there: the last one, where that is `within` it."""
        if within and self._taken:
            return self._taken[0]
        self._ahead = self._ahead or [next(self._chunks)]
        return self._ahead[0]


class Input:
    """The training batches of a run, known from the number of the step alone.

    `origin` counts the examples consumed before step 0; it isn't 0 once a run went on with another batch size.
    """

    def __init__(self, experiment: Experiment, settings: Settings):
        self.source, self.strategy = experiment.train_source, experiment.strategy
        self.global_batch_size = settings.global_batch_size
        row_bytes = sum(spec.dtype.size * spec.shape.num_elements() for spec in self.source.spec.values())
        self.chunk_steps = settings.steps_per_chunk(self.global_batch_size * row_bytes)
        bytes_of_replica = self.chunk_steps * self.global_batch_size * row_bytes // self.strategy.num_replicas_in_sync
        if bytes_of_replica > (memory := machine_memory()):
            raise NoRoomError(
                f"`Trainer.global_batch_size` is {self.global_batch_size}, {self.chunk_steps} steps a chunk: one "
                f"replica's share is {bytes_of_replica / 2**30:,.0f} GiB, and this machine has "
                f"{memory / 2**30:,.0f}. Use a smaller batch, or a smaller `Trainer.chunk_steps`."
            )
        if isinstance(self.strategy, MeshStrategy):
            what = "`Trainer.global_batch_size`"
            self.strategy.plan.check_rows(self.global_batch_size, settings.microbatches, what=what)
        self.origin = 0
        self._synthetic, self._seed, self._microbatches = experiment.synthetic, experiment.seed, settings.microbatches
        self._chunks = functools.partial(
            train_chunks,
            self.source,
            global_batch_size=self.global_batch_size,
            microbatches=self._microbatches,
            seed=self._seed,
        )
        self._parallel_calls = settings.parallel_calls

    def chunks_from(self, step: int) -> "Chunks":
        """Returns the chunks from the one on that `step` is in."""
        return Chunks(self._stacked_from(step))

    def _stacked_from(self, step: int) -> Iterator[Any]:
        """Yields stacked batches for ever, each replica's its own, from the chunk that `step` is in."""
        chunks = iter(self._chunks_of_replicas(step))
        while True:
            with explained(self.source):
                chunk = next(chunks)
            yield chunk

    @property
    def chunk_spec(self) -> Any:
        """Returns what `tf.function` is to be told of a chunk."""
        return self._chunks_of_replicas(0).element_spec

    @property
    def batch_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of a step's batch on one replica, [microbatches, rows, ...]."""
        spec = self._chunks_of_replica(0, 0).element_spec
        return {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in spec.items()}

    def batch_of(self, step: int) -> Batch:
        """Returns the whole global batch of a step, [microbatches, rows, ...], whatever the replicas."""
        stacked = next(iter(self._chunks(chunk_steps=1, first_step=self._read_as(step), origin=self.origin)))
        return {key: x[0] for key, x in stacked.items()}

    def examples_of(self, step: int) -> npt.NDArray[np.int64]:
        """Returns which examples of the source the global batch of a step holds, [microbatches, rows]."""
        indices = position_indices(
            len(self.source),
            first_step=self._read_as(step),
            num_steps=1,
            global_batch_size=self.global_batch_size,
            microbatches=self._microbatches,
            origin=self.origin,
            seed=self._seed,
        )
        return np.asarray(indices[0])

    def examples_before(self, step: int) -> int:
        """Counts the examples that a run has consumed when `step` begins."""
        return self.origin + step * self.global_batch_size

    def _read_as(self, step: int) -> int:
        """Returns the step whose examples `step` reads: synthetic input goes round in its first chunk."""
        return step % self.chunk_steps if self._synthetic else step

    def _chunks_of_replicas(self, step: int) -> PerReplica:
        return PerReplica(lambda replica: self._chunks_of_replica(replica, step), self.strategy)

    def _chunks_of_replica(self, replica: int, step: int) -> tf.data.Dataset:
        return self._chunks(
            chunk_steps=self.chunk_steps,
            first_step=step,
            origin=self.origin,
            replicas=self.strategy.num_replicas_in_sync,
            replica=replica,
            synthetic=self._synthetic,
            parallel_calls=self._parallel_calls,
        )
