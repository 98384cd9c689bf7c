"""How a run comes by what it trains on: examples that it asks for by number, or that come one after the other.

A `Reader` is of a run; each time that the run begins to take steps, it gets a `Reading` from there on.
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
    """One way through the examples of a run, from a step on; `chunks(replica)` makes the chunks of a replica.

    These are endless, `{feature: [chunk_steps, microbatches, rows, ...]}`, and aligned: the first holds the step that
    the reading starts with, but begins at the multiple of `chunk_steps` at or below it.
    """

    def __init__(self, chunks: Callable[[int], tf.data.Dataset]):
        self._chunks = chunks

    def chunks(self, replica: int) -> tf.data.Dataset:
        return self._chunks(replica)

    def begin(self, alive: Callable[[], object]) -> None:
        """Comes to where the reading starts, which may take its time; calls `alive` as it gets ahead."""

    def own_errors(self) -> contextlib.AbstractContextManager[object]:
        """Raises what went wrong in code of the user's as it was, where TensorFlow only says that something did."""
        return contextlib.nullcontext()


class Reader(abc.ABC):
    """Hands out the examples of a run's steps, of which each has `global_batch_size`.

    `origin` counts the examples consumed before step 0; it isn't 0 once a run went on with another batch size.
    """

    def __init__(self, *, global_batch_size: int, microbatches: int, seed: int):
        self.global_batch_size, self.microbatches, self.seed = global_batch_size, microbatches, seed

    @property
    @abc.abstractmethod
    def example_spec(self) -> dict[str, tf.TensorSpec]:
        """Says what one example looks like in a chunk, by feature."""

    def chunk_spec(self, *, chunk_steps: int, replicas: int = 1) -> dict[str, tf.TensorSpec]:
        """Says what the chunks of one replica look like, [chunk_steps, microbatches, rows, ...], by feature."""
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
        """Returns the way from `first_step` on, of which this process takes the rows of its `local` replicas.

        With `synthetic` the first chunk comes over and over.
        """

    @abc.abstractmethod
    def batch(self, step: int, *, origin: int) -> dict[str, tf.Tensor]:
        """Returns the whole global batch of a step, [microbatches, rows, ...], for whoever looks at it aside."""

    @abc.abstractmethod
    def numbers(self, step: int, *, origin: int) -> npt.NDArray[np.int64]:
        """Returns which examples the global batch of a step holds, [microbatches, rows]."""

    def kept(self, examples: int) -> dict[str, Any]:
        """Returns what a checkpoint has to hold, with so many examples consumed, to go on from there."""
        return {}

    def load(self, kept: dict[str, Any], examples: int) -> None:  # noqa: B027  # by number, all are there
        """Goes on from what a checkpoint held, with so many examples consumed."""


class SourceReader(Reader):
    """Asks for the examples of each chunk by their numbers; of a slow source, for `parallel_calls` chunks at once.

    They come `as_kept`, where that is asked for and the source has them so.
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
