"""Readers: how a run gets its training examples, from a source by index or from a stream in order.

A run has one `Reader`; each time that it starts taking steps, it gets a `Reading` from there on.
"""

import abc
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.pipeline import position_indices, rows_of, train_chunks
from core.data.source import Source


class Reading:
    """One pass through a run's examples, from a step on; `chunks(replica)` makes the chunks of a replica.

    They are endless, `{feature: [chunk_steps, microbatches, rows, ...]}`, and aligned: the first contains the reading's
    first step, and begins at the multiple of `chunk_steps` at or below it.
    """

    def __init__(self, chunks: Callable[[int], tf.data.Dataset]):
        self._chunks = chunks

    def chunks(self, replica: int) -> tf.data.Dataset:
        return self._chunks(replica)

    def begin(self, alive: Callable[[], object]) -> None:
        """Moves to the start of the reading, which may take long; calls `alive` as it progresses."""

    def own_errors(self) -> contextlib.AbstractContextManager[object]:
        """Raises the original error of a user's code, of which TensorFlow passes on only the message."""
        return contextlib.nullcontext()


class Reader(abc.ABC):
    """Provides the examples of a run's steps, `global_batch_size` per step.

    `origin` counts the examples consumed before step 0; it isn't 0 after a run resumed with another batch size.
    """

    def __init__(self, *, global_batch_size: int, microbatches: int, seed: int):
        self.global_batch_size, self.microbatches, self.seed = global_batch_size, microbatches, seed

    @property
    @abc.abstractmethod
    def example_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the spec of one example in a chunk, by feature."""

    def chunk_spec(self, *, chunk_steps: int, replicas: int = 1) -> dict[str, tf.TensorSpec]:
        """Returns the spec of one replica's chunks, [chunk_steps, microbatches, rows, ...], by feature."""
        leading = [chunk_steps, self.microbatches, rows_of(self.global_batch_size, self.microbatches, replicas)]
        return {name: tf.TensorSpec([*leading, *x.shape], x.dtype) for name, x in self.example_spec.items()}

    @abc.abstractmethod
    def reading(
        self,
        *,
        chunk_steps: int,
        first_step: int = 0,
        origin: int = 0,
        replicas: int = 1,
        local: Sequence[int] = (0,),
        synthetic: bool = False,
    ) -> Reading:
        """Returns the reading from `first_step` on; this process takes the rows of its `local` replicas.

        With `synthetic`, the first chunk repeats.
        """

    @abc.abstractmethod
    def batch(self, step: int, *, origin: int) -> dict[str, tf.Tensor]:
        """Returns the whole global batch of a step, [microbatches, rows, ...], for separate inspection."""

    @abc.abstractmethod
    def numbers(self, step: int, *, origin: int) -> npt.NDArray[np.int64]:
        """Returns the indices of the examples in a step's global batch, [microbatches, rows]."""

    def kept(self, examples: int) -> dict[str, Any]:
        """Returns the state for a checkpoint from which to continue after so many examples."""
        return {}

    def load(self, kept: dict[str, Any], examples: int) -> None:  # noqa: B027  # by number, all are there
        """Continues from a checkpoint's state after so many examples."""


class SourceReader(Reader):
    """Requests the examples of each chunk by index; for a slow source, `parallel_calls` chunks in parallel.

    With `as_kept`, they come in the source's storage format, if it has one.
    """

    def __init__(self, source: Source, *, parallel_calls: int = 1, as_kept: bool = False, **layout: int):
        super().__init__(**layout)
        self._source, self._parallel_calls, self._as_kept = source, parallel_calls, as_kept

    @property
    def example_spec(self) -> dict[str, tf.TensorSpec]:
        kept = self._source.kept if self._as_kept else None
        return kept.spec if kept else self._source.spec

    def reading(
        self,
        *,
        chunk_steps: int,
        first_step: int = 0,
        origin: int = 0,
        replicas: int = 1,
        local: Sequence[int] = (0,),
        synthetic: bool = False,
    ) -> Reading:
        return Reading(
            lambda replica: train_chunks(
                self._source,
                global_batch_size=self.global_batch_size,
                microbatches=self.microbatches,
                chunk_steps=chunk_steps,
                first_step=first_step,
                origin=origin,
                seed=self.seed,
                replicas=replicas,
                replica=replica,
                synthetic=synthetic,
                parallel_calls=self._parallel_calls,
                as_kept=self._as_kept,
            )
        )

    def batch(self, step: int, *, origin: int) -> dict[str, tf.Tensor]:
        chunks = self.reading(chunk_steps=1, first_step=step, origin=origin).chunks(0)
        kept = self._source.kept if self._as_kept else None
        batch = {key: x[0] for key, x in next(iter(chunks)).items()}
        return kept.decode(batch) if kept else batch

    def numbers(self, step: int, *, origin: int) -> npt.NDArray[np.int64]:
        indices = position_indices(
            self._source,
            first_step=step,
            num_steps=1,
            global_batch_size=self.global_batch_size,
            microbatches=self.microbatches,
            origin=origin,
            seed=self.seed,
        )
        return np.asarray(indices[0])
