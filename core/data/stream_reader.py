"""Reads a stream for a run, and returns the state that checkpoints need to resume it.

Every process reads the whole stream once, and takes the rows of its own replicas.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.pipeline import configured
from core.data.reader import Reader, Reading
from core.data.stream import Stream
from core.data.stream_pass import Beginning, Chunk, Passed, StreamPass
from core.data.stream_state import Mark
from core.data.trail import Trail
from core.errors import ConfigurationError

_AHEAD = 8  # chunks at most, from the one being consumed to the one being made


class StreamReader(Reader):
    """Reads a stream, and stores where it began and the hashes of the examples read since.

    The stream begins with epoch 0, or with the epoch in which a run with `replay=False` resumed.
    """

    def __init__(self, stream: Stream, *, say: Callable[[str], object] = print, parallel_calls: int = 1, **layout: int):
        super().__init__(**layout)
        if parallel_calls != 1:
            raise ConfigurationError(
                f"`Trainer.parallel_calls` is {parallel_calls}, but a stream returns one example after another: "
                "leave it out, and give `num_parallel_calls` to the maps of the stream's dataset."
            )
        self._stream, self._say = stream, say
        self._beginning, self._trail = Beginning(), Trail()
        self._passed = collections.deque[Passed](maxlen=_AHEAD)
        self._loaded: tuple[int, dict[str, Any]] | None = None
        self._mark: Mark | None = None  # of the checkpoint

    @property
    def example_spec(self) -> dict[str, tf.TensorSpec]:
        return self._stream.spec

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
        if synthetic:
            whole = self._pass(self._beginning.examples, 0, chunk_steps, lambda passed: None)
        else:
            position = origin + first_step * self.global_batch_size
            whole = self._pass(position, first_step % chunk_steps, chunk_steps, self._passed.append)
        spec = self.chunk_spec(chunk_steps=chunk_steps, replicas=replicas)
        return _SharedReading(whole, spec, local=local, synthetic=synthetic)

    def batch(self, step: int, *, origin: int) -> dict[str, tf.Tensor]:
        whole = self._pass(origin + step * self.global_batch_size, 0, 1, lambda passed: None)
        whole.begin(lambda: None)
        return {name: tf.constant(x[0]) for name, x in whole.chunk().items()}

    def numbers(self, step: int, *, origin: int) -> npt.NDArray[np.int64]:
        numbers = origin + step * self.global_batch_size + np.arange(self.global_batch_size)
        return numbers.reshape(self.microbatches, -1)

    def kept(self, examples: int) -> dict[str, Any]:
        if self._loaded and self._loaded[0] == examples:
            return self._loaded[1]
        for passed in list(self._passed):
            steps, rest = divmod(examples - passed.examples, self.global_batch_size)
            if rest == 0 and 1 <= steps <= len(passed.hashes):
                mark = self._mark_before(examples)
                return {
                    "first_epoch": self._beginning.epoch,
                    "began_at": self._beginning.examples,
                    "epoch": passed.epoch,
                    "hash": int(passed.hashes[steps - 1]),
                    "marks": self._trail.marks(examples - self._beginning.examples),
                    **({"state": mark._asdict()} if mark else {}),
                }
        return {}

    def _mark_before(self, examples: int) -> Mark | None:
        """Returns a moment of the iterator's state, at least one step before `examples`.

        A resumed run reads that step again: its hash shows whether the state leads to the same examples.
        """
        marks = [mark for passed in list(self._passed) for mark in passed.marks]
        marks += [self._mark] if self._mark else []
        before = [mark for mark in marks if mark.examples <= examples - self.global_batch_size]
        return max(before, key=lambda mark: mark.examples, default=None)

    def load(self, kept: dict[str, Any], examples: int) -> None:
        self._passed.clear()
        self._mark = Mark(**kept["state"]) if self._stream.replay and "state" in kept else None
        if self._stream.replay:
            self._beginning = Beginning(kept.get("first_epoch", 0), kept.get("began_at", 0))
            told = (examples - self._beginning.examples, kept["hash"]) if kept else None
            self._trail, self._loaded = Trail(kept.get("marks", ()), told), (examples, kept)
            return
        self._beginning = Beginning(kept.get("epoch", -1) + 1, examples)
        self._trail, self._loaded = Trail(), None
        self._say(
            f"the stream `{self._stream.name}` isn't replayed: after {examples:,} examples the run continues with "
            f"epoch {self._beginning.epoch}. The rest of the previous epoch is skipped, and the run doesn't end in "
            "the bits of one that was never stopped"
        )

    def _pass(self, position: int, lead: int, chunk_steps: int, passed: Callable[[Passed], object]) -> StreamPass:
        return StreamPass(
            self._stream,
            self._trail,
            self._beginning,
            position=position,
            lead=lead,
            shape=[chunk_steps, self.microbatches, self.global_batch_size // self.microbatches],
            seed=self.seed,
            say=self._say,
            passed=passed,
            mark=self._mark if self._loaded and position >= self._loaded[0] and not self._stream.shuffle else None,
        )


class _SharedReading(Reading):
    """Reads the stream once for all replicas of this process. Each replica takes its own rows."""

    def __init__(self, whole: StreamPass, spec: dict[str, tf.TensorSpec], *, local: Sequence[int], synthetic: bool):
        self._whole, self._spec, self._synthetic = whole, spec, synthetic
        self._waiting = {replica: collections.deque[Chunk]() for replica in local}
        self._lock = threading.Lock()
        self._failure: Exception | None = None

    def begin(self, alive: Callable[[], object]) -> None:
        self._whole.begin(alive)

    def chunks(self, replica: int) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert
        def chunk(_: tf.Tensor) -> dict[str, tf.Tensor]:
            # Not `from_generator`: it copies, and makes the process return freed memory at once, which is slow.
            types = [x.dtype for x in self._spec.values()]
            values = tf.numpy_function(lambda: self._next_of(replica), [], types)
            return {name: tf.ensure_shape(x, s.shape) for (name, s), x in zip(self._spec.items(), values, strict=True)}

        if self._synthetic:
            return configured(tf.data.Dataset.range(1).map(chunk).cache().repeat())
        return configured(tf.data.Dataset.range(1 << 62).map(chunk))

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        failure = None  # of the requested chunk; a chunk made ahead may have failed before this one was requested
        try:
            yield
        except tf.errors.OpError:
            failure = self._failure
            if failure is None:
                raise
        if failure is not None:
            raise failure  # without TensorFlow's message as its context

    def _next_of(self, replica: int) -> list[npt.NDArray[Any]]:
        """Returns a replica's rows of its next chunk. If no chunk is waiting, it reads one for all replicas."""
        with self._lock:
            if not self._waiting[replica]:
                self._make_next()
            chunk = self._waiting[replica].popleft()
        return [chunk[name] for name in self._spec]

    def _make_next(self) -> None:
        try:
            whole = self._whole.chunk()
        except Exception as error:  # TensorFlow passes on only the message
            self._failure = self._failure or error  # it may ask once more, when a failed iterator has ended
            raise
        for replica, waiting in self._waiting.items():
            rows = next(iter(self._spec.values())).shape[2]
            waiting.append({name: x[:, :, replica * rows : (replica + 1) * rows] for name, x in whole.items()})
