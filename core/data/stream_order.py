"""The examples of a stream in the order in which a run consumes them, any number at a time."""

from collections.abc import Iterator

import numpy as np

from core.data.aligned import aligned_join
from core.data.stream import Block, Stream
from core.errors import DataError

_PARTS = 4  # of a buffer; one of them is handed out at a time


class InOrder:
    """Hands out the examples of a stream from the beginning of an epoch on; `count` are asked of it at a time.

    `epoch` is the last one that was begun, which may be ahead of what was handed out.
    """

    def __init__(self, stream: Stream, *, seed: int, epoch: int, before: int, count: int):
        self.epoch = epoch
        self._stream, self._seed, self._before = stream, seed, before
        size = stream.shuffle
        blocks = self._epochs(count)
        words = [seed % 2**32, (seed >> 32) % 2**32, epoch]
        self._rows = _Rows(blocks if size is None else shuffled(blocks, size, seed=words))

    def take(self, count: int) -> Block:
        """Returns the next examples, of as many epochs as it takes."""
        return self._rows.take(count)

    def _epochs(self, count: int) -> Iterator[Block]:
        before = self._before
        while True:
            first = before
            for block in self._stream.blocks(self._seed, self.epoch, count=count, before=before):
                before += _length(block)
                yield block
            if before == first:
                raise DataError(
                    f"The stream `{self._stream.name}` ({self._stream.place}) has ended: after {before:,} examples it "
                    f"made none of epoch {self.epoch}. Return a new iterator at each call, not one that is used up; "
                    "or train for fewer steps."
                )
            self.epoch += 1


def shuffled(blocks: Iterator[Block], size: int, *, seed: list[int]) -> Iterator[Block]:
    """Yields the examples out of a buffer of `size`: a part of it, chosen by chance, is replaced by those that follow.

    How many come at a time is the same for any run, and so is the order.
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
    """Cuts blocks of any length into others, exactly as long as is asked for."""

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
