"""Provides a run's training examples, from a source (by index) or from a stream (in order).

A run has one `Reader`, which makes a `Reading` each time that the run starts or goes back to another step.
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
    """Reads a run's examples from one step on. `chunks(replica)` returns the chunks of a replica, without end.

    A chunk is `{feature: [chunk_steps, microbatches, rows, ...]}`. The first chunk contains the reading's first step,
    and begins at a multiple of `chunk_steps`.
    """

    def __init__(self, chunks: Callable[[int], tf.data.Dataset]):
        self._chunks = chunks

    def chunks(self, replica: int) -> tf.data.Dataset:
        return self._chunks(replica)

    def begin(self, alive: Callable[[], object]) -> None:
        """Skips the examples before the first step. As this may take long, it calls `alive()` regularly."""

    def own_errors(self) -> contextlib.AbstractContextManager[object]:
        """In its `with` block, raises the original exception of a user's code in place of TensorFlow's error."""
        return contextlib.nullcontext()


class Reader(abc.ABC):
    """Provides the training examples of a run, `global_batch_size` per step.

    In its methods, `origin` is the data position of step 0. It differs from 0 after a resume with another batch size.
    """

    def __init__(self, *, global_batch_size: int, microbatches: int, seed: int):
        self.global_batch_size, self.microbatches, self.seed = global_batch_size, microbatches, seed

    @property
    @abc.abstractmethod
    def example_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the spec of one example, `{feature: TensorSpec}`, as chunks contain it."""

    def chunk_spec(self, *, chunk_steps: int, replicas: int = 1) -> dict[str, tf.TensorSpec]:
        """Returns the spec of a replica's chunks: `{feature: TensorSpec [chunk_steps, microbatches, rows, ...]}`."""
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
        """Starts reading at `first_step` for this process's replicas, whose indices are `local`.

        With `synthetic`, the first chunk repeats.
        """

    @abc.abstractmethod
    def batch(self, step: int, *, origin: int) -> dict[str, tf.Tensor]:
        """Returns the global batch of one step, `{feature: [microbatches, rows, ...]}`, for inspection."""

    @abc.abstractmethod
    def numbers(self, step: int, *, origin: int) -> npt.NDArray[np.int64]:
        """Returns the indices of the examples in a step's global batch: int64 [microbatches, rows]."""

    def kept(self, examples: int) -> dict[str, Any]:
        """Returns the reader's state for a checkpoint, once `examples` examples are consumed."""
        return {}

    def load(self, kept: dict[str, Any], examples: int) -> None:  # noqa: B027  # by number, all are there
        """Restores the state `kept` of a checkpoint that was saved after `examples` consumed examples."""


class SourceReader(Reader):
    """Reads a source by index. `parallel_calls` is the number of chunks gathered in parallel, for a slow source.

    With `as_kept`, examples have the source's storage format, if it has one.
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
