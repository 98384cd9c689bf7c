"""Reads a stream once for a run: skips consumed examples, checks them, and makes chunks."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from core.data.stream import Block, Stream, aligned_join
from core.data.stream_features import ID
from core.data.stream_state import Mark
from core.data.trail import Hashes, Trail, hashes_after
from core.errors import DataError

_SAY_SECONDS = 10.0
_PARTS = 4  # of a buffer; one of them is returned at a time


class InOrder:
    """Returns the examples of a stream in order, beginning with an epoch's first.

    `epoch` is the epoch being read. With a shuffle buffer, returned examples may be from the previous epoch. With a
    `state` of the iterator, the examples continue from there. `states` collects `(examples before, epoch, state)`.
    """

    def __init__(self, stream: Stream, *, seed: int, epoch: int, before: int, count: int, state: str | None = None):
        self.epoch = epoch
        self.states: list[tuple[int, int, str]] = []
        self._stream, self._seed, self._before = stream, seed, before
        size = stream.shuffle
        blocks = self._epochs(count, state)
        words = [seed % 2**32, (seed >> 32) % 2**32, epoch]
        self._rows = _Rows(blocks if size is None else shuffled(blocks, size, seed=words))

    def take(self, count: int) -> Block:
        """Returns the next `count` examples; they may span several epochs."""
        return self._rows.take(count)

    def _epochs(self, count: int, state: str | None) -> Iterator[Block]:
        before = self._before
        keep = self._keep if self._stream.shuffle is None else None  # a state doesn't have the buffer's examples
        while True:
            first = before
            blocks = self._stream.blocks(self._seed, self.epoch, count=count, before=before, state=state, keep=keep)
            for block in blocks:
                before += _length(block)
                yield block
            if before == first and state is None:
                raise DataError(
                    f"The stream `{self._stream.name}` ({self._stream.place}) has ended: after {before:,} examples it "
                    f"made none of epoch {self.epoch}. Return a new iterator at each call, not one that is used up; "
                    "or train for fewer steps."
                )
            self.epoch += 1
            state = None

    def _keep(self, before: int, state: str) -> None:
        self.states.append((before, self.epoch, state))


def shuffled(blocks: Iterator[Block], size: int, *, seed: list[int]) -> Iterator[Block]:
    """Yields shuffled examples: a random quarter of a buffer of `size` examples at a time, which is then refilled.

    Block sizes and the order depend on `seed` and `size` alone, so every run gets the same.
    """
    rows, part = _Rows(blocks), -(-size // _PARTS)
    buffer = {name: x.copy() for name, x in rows.take(size).items()}
    for number in range(1 << 62):
        chosen = np.random.RandomState([*seed, number % 2**32, number >> 32]).permutation(size)[:part]
        following = rows.take(part)
        yield {name: x[chosen] for name, x in buffer.items()}
        for name, x in buffer.items():
            x[chosen] = following[name]


class _Rows:
    """Regroups blocks of any length into blocks of the requested length."""

    def __init__(self, blocks: Iterator[Block]):
        self._blocks, self._left = blocks, Block()

    def take(self, count: int) -> Block:
        parts = list[Block]()
        while count:
            if not self._left or not _length(self._left):
                self._left = next(self._blocks)
            part = {name: x[:count] for name, x in self._left.items()}
            self._left = {name: x[count:] for name, x in self._left.items()}
            count -= _length(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else {name: aligned_join([p[name] for p in parts]) for name in parts[0]}


def _length(block: Block) -> int:
    return len(next(iter(block.values())))


Chunk = dict[str, npt.NDArray[Any]]  # each feature [chunk_steps, microbatches, rows, ...]


@dataclasses.dataclass(frozen=True)
class Beginning:
    """Where a run's stream begins: its first epoch, and the number of examples that the run consumed before."""

    epoch: int = 0
    examples: int = 0


@dataclasses.dataclass(frozen=True)
class Passed:
    """The record of one chunk for checkpoints: hashes of its examples, one per step, and the `examples` read before.

    `marks` are the moments at which the iterator's state was taken.
    """

    examples: int
    hashes: Hashes
    epoch: int
    marks: Sequence[Mark] = ()


class StreamPass:
    """Reads a stream from its beginning, or from `mark`, and makes chunks from example `position` on.

    A feature of a chunk has the leading axes `shape`, [chunk_steps, microbatches, rows]. The first chunk begins with
    `lead` steps of zeros, which are never run. The hashes of each chunk go to `passed`.
    """

    def __init__(
        self,
        stream: Stream,
        trail: Trail,
        beginning: Beginning,
        *,
        position: int,
        lead: int,
        shape: Sequence[int],
        seed: int,
        say: Callable[[str], object],
        passed: Callable[[Passed], object],
        mark: Mark | None = None,
    ):
        self._stream, self._trail, self._beginning = stream, trail, beginning
        self._position, self._lead, self._shape, self._seed = position, lead, tuple(shape), seed
        self._say, self._passed, self._mark = say, passed, mark
        self._restart(mark)
        self._whole_chunks = self._cut()

    def begin(self, alive: Callable[[], object]) -> None:
        """Skips the examples before `position`; calls `alive()` after each block."""
        try:
            self._skip(alive)
        except Exception as error:  # an iterator may raise any if it can't continue from a state
            if self._mark is None:
                raise
            self._say(f"the stream `{self._stream.name}` doesn't continue from its state, and is read again: {error}")
            self._restart(None)
            self._skip(alive)

    def _restart(self, mark: Mark | None) -> None:
        start = mark or Mark(self._beginning.examples, self._beginning.epoch, 0, "")
        self._order = InOrder(
            self._stream,
            seed=self._seed,
            epoch=start.epoch,
            before=start.examples,
            count=int(np.prod(self._shape)),
            state=start.state or None,
        )
        self._count, self._hash = start.examples - self._beginning.examples, start.hash  # since the beginning
        self._marks: list[Mark] = []

    def _skip(self, alive: Callable[[], object]) -> None:
        step, told = int(np.prod(self._shape)), time.monotonic()
        end = self._position - self._beginning.examples
        while self._count < end:
            self._take(min(step, end - self._count))
            alive()
            if time.monotonic() - told > _SAY_SECONDS:
                told = time.monotonic()
                self._say(f"passing over examples of `{self._stream.name}`: {self._count:,} of {end:,}")

    def chunk(self) -> Chunk:
        """Returns the next chunk, with the rows of all replicas."""
        return next(self._whole_chunks)

    def _cut(self) -> Iterator[Chunk]:
        lead = self._lead
        size = int(np.prod(self._shape[1:]))
        while True:
            before = self._beginning.examples + self._count
            block, hashes = self._take((self._shape[0] - lead) * size)
            self._passed(Passed(before, hashes[size - 1 :: size], self._order.epoch, self._marks))
            self._marks = []
            yield {
                name: _led(lead * size, x).reshape(*self._shape, *x.shape[1:])
                for name, x in block.items()
                if name != ID
            }
            lead = 0

    def _take(self, count: int) -> tuple[Block, Hashes]:
        """Returns the next examples and the hash after each. If an earlier reading differs, it raises a `DataError`."""
        block = self._order.take(count)
        hashes = hashes_after(self._count, self._hash, block)
        others = self._trail.follow(self._count, hashes)
        if others is not None:
            first, last = (self._beginning.examples + x for x in others)
            raise DataError(
                f"The stream `{self._stream.name}` ({self._stream.place}) doesn't repeat: of its examples number "
                f"{first:,} to {last - 1:,}, read up to epoch {self._order.epoch}, at least one isn't what the run has "
                "read. Make it depend on (seed, epoch) alone: sort the names of files, and seed what shuffles and "
                "augments. Or give `--gin_param='stream.replay=False'`, which continues with what it makes now, but "
                "not in the same bits: docs/input.md#resuming-a-stream."
            )
        for before, epoch, state in self._order.states:
            done = before - self._beginning.examples - self._count
            self._marks.append(Mark(before, epoch, int(hashes[done - 1]) if done else self._hash, state))
        self._order.states.clear()
        self._count, self._hash = self._count + count, int(hashes[-1])
        return block, hashes


def _led(count: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns `values` with `count` rows of zeros in front."""
    return aligned_join([np.zeros([count, *values.shape[1:]], values.dtype), values]) if count else values
