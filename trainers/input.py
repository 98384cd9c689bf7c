"""What a run reads: the batches of its steps, as chunks for the loop or one by one for whoever looks closer."""

import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from core.data import PerReplica, train_chunks
from core.task import Batch
from trainers.diagnosis import explained
from trainers.experiment import Experiment
from trainers.settings import Settings


class Input:
    """The training batches of a run, known from the number of the step alone.

    `origin` counts the examples consumed before step 0; it isn't 0 once a run went on with another batch size.
    """

    def __init__(self, experiment: Experiment, settings: Settings):
        self.source, self.strategy = experiment.train_source, experiment.strategy
        self.global_batch_size = settings.global_batch_size
        row_bytes = sum(spec.dtype.size * spec.shape.num_elements() for spec in self.source.spec.values())
        self.chunk_steps = settings.steps_per_chunk(self.global_batch_size * row_bytes)
        self.origin = 0
        self._synthetic = experiment.synthetic
        self._chunks = functools.partial(
            train_chunks,
            self.source,
            global_batch_size=self.global_batch_size,
            microbatches=settings.microbatches,
            seed=experiment.seed,
        )

    def chunks_from(self, step: int) -> Iterator[Any]:
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
        first = step % self.chunk_steps if self._synthetic else step
        stacked = next(iter(self._chunks(chunk_steps=1, first_step=first, origin=self.origin)))
        return {key: x[0] for key, x in stacked.items()}

    def examples_before(self, step: int) -> int:
        """Counts the examples that a run has consumed when `step` begins."""
        return self.origin + step * self.global_batch_size

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
        )
