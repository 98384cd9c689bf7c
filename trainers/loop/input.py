"""The input of a run: batches in chunks for the loop, or single ones for diagnosis."""

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.cluster import is_chief, joined
from core.data import PerReplica, Reader, Reading, Source, SourceReader, Stream, StreamReader
from core.data.pipeline import rows_of
from core.data.replicas import per_replica_spec
from core.distribution import Agreement
from core.engine import TrainStep
from core.errors import CheckpointError, ConfigurationError, DataError, NoRoomError
from core.machine import machine_memory
from core.task import Batch
from trainers.errors.tensorflow import explained
from trainers.experiment import Experiment
from trainers.options.compile import AUTO, XLA
from trainers.settings import Settings

SOURCE = "source"  # in a manifest: the description of the run's source


class Chunks:
    """An iterator over chunks of batches that can also `peek` at the next chunk."""

    def __init__(self, chunks: Iterator[Any], *, by_any_thread: bool = True):
        self._chunks, self._taken, self._by_any_thread = chunks, list[Any](), by_any_thread
        self._ahead: Callable[[], Any] | None = None  # returns the next chunk, once it is fetched

    def __iter__(self) -> "Chunks":
        return self

    def __next__(self) -> Any:
        ahead, self._ahead = self._ahead, None
        self._taken = [ahead() if ahead else next(self._chunks)]
        return self._taken[0]

    def fetch_next(self, thread: futures.Executor) -> None:
        """Fetches the next chunk in a thread, because even this call may take as long as a short step."""
        if self._by_any_thread and self._ahead is None:
            self._ahead = thread.submit(next, self._chunks).result

    def close(self) -> None:
        """Stops the prefetching, and waits until it has stopped. Otherwise Python's exit may wait for ever."""
        self._chunks, self._ahead = iter(()), None

    def peek(self, *, within: bool) -> Any:
        """Returns the chunk with the next step, without consuming it. With `within`, it is the chunk taken last."""
        if within and self._taken:
            return self._taken[0]
        if self._ahead is None:
            chunk = next(self._chunks)
            self._ahead = lambda: chunk
        return self._ahead()


class Input:
    """The training batches of a run, which the step number alone determines.

    `origin` counts the examples consumed before step 0. It differs from 0 after a resume with another batch size.
    The source is that of the stage which begins or lasts at `step`.
    """

    def __init__(self, experiment: Experiment, settings: Settings, step: int = 0):
        by_step = _sources(experiment, settings)
        self.source, self.strategy = by_step[max(first for first in by_step if first <= step)], experiment.strategy
        self.global_batch_size = settings.global_batch_size
        row_bytes = sum(spec.dtype.size * spec.shape.num_elements() for spec in self.source.spec.values())
        self.chunk_steps = settings.steps_per_chunk(self.global_batch_size * row_bytes)
        bytes_of_replica = self.chunk_steps * self.global_batch_size * row_bytes // self.strategy.num_replicas_in_sync
        if bytes_of_replica > (memory := machine_memory()):
            raise NoRoomError(
                f"`Trainer.global_batch_size` is {self.global_batch_size}, with {self.chunk_steps} steps per chunk: "
                f"one replica's chunk takes {bytes_of_replica / 2**30:,.0f} GiB, and this machine has "
                f"{memory / 2**30:,.0f} GiB. Use a smaller batch, or a smaller `Trainer.chunk_steps`."
            )
        self.backend = experiment.assembly.backend
        self._check_rows(settings, step)
        self._first_step = max(first for first in [0, *(settings.stages or {})] if first <= step)
        self.origin = 0
        # By which a run that resumes recognises its sources.
        self.description = {
            f"{key} from step {first} on" if first else key: value
            for first, source in by_step.items()
            for key, value in source.description().items()
        }
        self._agreement = Agreement(self.strategy)
        self._synthetic = experiment.synthetic
        self.decode: Callable[[Batch], Batch] | None = None
        self._settings, self._reader = settings, reader_of(self.source, settings, seed=experiment.seed)

    def decode_in(self, train_step: TrainStep) -> None:
        """Keeps examples in the source's storage format until the step decodes them, if that is faster."""
        self.decode = decoder_of(self.source, self._settings, train_step)
        train_step.decode_by(self.decode)
        if self.decode:
            self._reader = reader_of(self.source, self._settings, seed=self._reader.seed, as_kept=True)

    def chunks_from(self, step: int, *, alive: Callable[[], object] = lambda: None) -> "Chunks":
        """Returns the chunks from the one that contains `step`. Calls `alive` while it seeks."""
        if step < self._first_step:
            raise CheckpointError(
                f"the stage of `Trainer.stages` begins at step {self._first_step}, and its checkpoint is gone: step "
                f"{step} is of an earlier stage. Run the command in the workdir, which resumes from there."
            )
        # Meshes and servers copy each chunk to devices, in order with their other operations.
        return Chunks(self._stacked_from(step, alive), by_any_thread=self.backend.handed_over_by_any_thread)

    def _stacked_from(self, step: int, alive: Callable[[], object]) -> Iterator[Any]:
        """Yields stacked batches per replica without end, from the chunk that contains `step`."""
        reading = self._reading_from(step)
        with explained(self.source):
            reading.begin(alive)
        chunks = iter(PerReplica(reading.chunks, self.strategy))
        while True:
            with explained(self.source), reading.own_errors():
                chunk = next(chunks)
            yield chunk

    @property
    def chunk_spec(self) -> Any:
        """Returns the specs of a chunk for `tf.function`."""
        spec = self._reader.chunk_spec(chunk_steps=self.chunk_steps, replicas=self.strategy.num_replicas_in_sync)
        return per_replica_spec(spec, self.strategy)

    @property
    def batch_spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of a step's batch on one replica, [microbatches, rows, ...], for phases to read."""
        microbatches, replicas = self._settings.microbatches, self.strategy.num_replicas_in_sync
        rows = rows_of(self.global_batch_size, microbatches, replicas)
        spec = self.source.spec  # the storage format may have other shapes and features
        return {key: tf.TensorSpec([microbatches, rows, *x.shape], x.dtype) for key, x in spec.items()}

    def batch_of(self, step: int) -> Batch:
        """Returns the global batch of a step for all replicas together, [microbatches, rows, ...]."""
        return self._reader.batch(self._read_as(step), origin=self.origin)

    def examples_of(self, step: int) -> npt.NDArray[np.int64]:
        """Returns the indices of the examples in a step's global batch, [microbatches, rows]."""
        return self._reader.numbers(self._read_as(step), origin=self.origin)

    def examples_before(self, step: int) -> int:
        """Returns the number of examples consumed before `step`."""
        return self.origin + step * self.global_batch_size

    def kept(self, step: int) -> dict[str, Any]:
        """Returns the input state that a checkpoint at `step` needs, besides the number of examples.

        Call it on every worker. It raises a `DataError` if a stream that is replayed differs between workers.
        """
        kept, examples = self._reader.kept(self.examples_before(step)), self.examples_before(step)
        if isinstance(self.source, Stream) and self.source.replay:
            hash = str(kept.get("hash"))
            if self._agreement.any_worker(self._agreement.first_text(hash) != hash):
                raise DataError(
                    f"The stream `{self.source.name}` isn't the same in every process: after {examples:,} examples "
                    "their hashes differ. Each process makes the whole stream and takes the rows of its own replicas: "
                    "the stream must depend on (seed, epoch) alone, see docs/input.md#resuming-a-stream."
                )
        return kept

    def load(self, kept: dict[str, Any], *, step: int, examples: int) -> None:
        """Resumes from a checkpoint at `step`, with this many examples consumed."""
        self.origin += examples - self.examples_before(step)
        self._reader.load(kept, examples)

    def _check_rows(self, settings: Settings, step: int) -> None:
        """Checks the batches of all later stages as well, because no run should end at a border."""
        self.backend.check_rows(self.global_batch_size, settings.microbatches, what="`Trainer.global_batch_size`")
        for first in (first for first in settings.stages or {} if first > step):
            stage = settings.at(first)
            rows, microbatches = stage.global_batch_size, stage.microbatches
            try:
                self.backend.check_rows(rows, microbatches, what="`global_batch_size`")
                rows_of(rows, microbatches, self.strategy.num_replicas_in_sync)
            except ConfigurationError as error:
                raise ConfigurationError(f"in the stage of `Trainer.stages` from step {first} on, {error}") from None

    def _read_as(self, step: int) -> int:
        """Returns the step whose examples `step` reads. Synthetic input repeats its first chunk."""
        return step % self.chunk_steps if self._synthetic else step

    def _reading_from(self, step: int) -> Reading:
        replicas, membership = self.strategy.num_replicas_in_sync, joined()
        here = max(1, replicas // membership.cluster.size) if membership else replicas
        first = membership.cluster.index * here if membership and here < replicas else 0
        return self._reader.reading(
            chunk_steps=self.chunk_steps,
            first_step=step,
            origin=self.origin,
            replicas=replicas,
            local=range(first, first + here),
            synthetic=self._synthetic,
        )


def decoder_of(source: Source | Stream, settings: Settings, train_step: TrainStep) -> Callable[[Batch], Batch] | None:
    """Returns the function that decodes stored examples in a step, or None if examples arrive decoded.

    Decoding is free in a chunk that is one XLA program; elsewhere it adds operations to each step.
    """
    if isinstance(source, Stream) or settings.compile not in (XLA, AUTO) or not train_step.one_program:
        return None
    return source.kept.decode if source.kept else None


def _sources(experiment: Experiment, settings: Settings) -> dict[int, Source | Stream]:
    """Returns the sources of the run's stages by first step."""
    if settings.stages is None:
        return {0: experiment.train_source}
    from trainers.options.stages import sources

    return sources(experiment.train_source, settings.stages)


def reader_of(source: Source | Stream, settings: Settings, *, seed: int, as_kept: bool = False) -> Reader:
    """Makes the reader of a run's examples; `as_kept` leaves examples in the storage format, for steps that decode."""
    layout = {
        "global_batch_size": settings.global_batch_size,
        "microbatches": settings.microbatches,
        "parallel_calls": settings.parallel_calls,
        "seed": seed,
    }
    if isinstance(source, Stream):
        return StreamReader(source, say=_say, **layout)
    return SourceReader(source, as_kept=as_kept, **layout)


def _say(text: str) -> None:
    if is_chief():
        print(text, flush=True)
