"""Hashes of a stream's examples. They show whether a second reading gives the same examples.

>>> import numpy as np
>>> examples = {"x": np.arange(6, dtype=np.int32)}
>>> whole = hashes_after(0, 0, examples)
>>> int(whole[5]) == int(hashes_after(4, int(whole[3]), {"x": examples["x"][4:]})[1])
True
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from core.data.stream import Block
from core.data.stream_features import ID

Hashes = npt.NDArray[np.uint64]

_WORDS = 64  # of 8 bytes, spread evenly over a feature of one example: usually all of it, and enough of an image
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Trail:
    """The hashes after 1, 2, 4, 8, ... examples of a stream, read in this run or stored in a checkpoint.

    A second reading is compared with these hashes. The first difference shows early, and roughly where.
    """

    def __init__(self, marks: Sequence[int] = (), told: tuple[int, int] | None = None):
        self._marks, self._told = list(marks), told

    def marks(self, count: int) -> list[int]:
        """Returns the stored hashes that concern the first `count` examples."""
        return self._marks[: count.bit_length()]

    def follow(self, before: int, hashes: Hashes) -> tuple[int, int] | None:
        """Compares `hashes`, one after each example from number `before` on, with stored hashes, and stores new ones.

        Returns `None` if all are equal. Otherwise returns the two numbers of examples between which the first
        difference is.
        """
        after = before + len(hashes)
        for power in range(before.bit_length(), after.bit_length()):
            found = int(hashes[(1 << power) - before - 1])
            if power == len(self._marks):
                self._marks.append(found)
            elif found != self._marks[power]:
                return (1 << power) // 2, 1 << power
        if self._told and before < self._told[0] <= after and int(hashes[self._told[0] - before - 1]) != self._told[1]:
            return 1 << (self._told[0].bit_length() - 1), self._told[0]
        return None


def hashes_after(before: int, hash: int, examples: Block) -> Hashes:
    """Returns the hash after each of `examples`. `hash` is the one after the `before` examples in front of them.

    An example is identified by its `id`, if it has one, and otherwise by its contents, at most 64 words of each
    feature.
    """
    features = [ID] if ID in examples else sorted(examples)
    digests = np.zeros([len(examples[features[0]])], np.uint64)
    for feature in features:
        digests = _mixed(digests + _digests(examples[feature]))
    places = np.arange(before + 1, before + 1 + len(digests)).astype(np.uint64)
    return np.cumsum(_mixed(digests + places * _GOLDEN), dtype=np.uint64) + np.uint64(hash)


def _digests(values: npt.NDArray[Any]) -> Hashes:
    """Returns a uint64 number for each example of one feature [examples, ...]."""
    if values.dtype == object:
        return np.array([_digest(value) for value in values.reshape(-1)], np.uint64)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    size = rows.shape[1] * rows.itemsize
    unit = next(n for n in (8, 4, 2, 1) if size % n == 0)
    words = rows.view(np.dtype(f"u{unit}")) if size else np.zeros([len(rows), 1], np.uint8)
    words = words[:, :: -(-words.shape[1] // (_WORDS * 8 // unit))].astype(np.uint64, copy=False)
    odd = _mixed((np.arange(1, words.shape[1] + 1).astype(np.uint64)) * _GOLDEN) | np.uint64(1)
    return np.einsum("nw,w->n", words, odd)


def _digest(text: Any) -> int:
    text = text.item() if isinstance(text, np.ndarray) else text
    raw = text if isinstance(text, bytes) else str(text).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def _mixed(x: Hashes) -> Hashes:
    """Mixes the bits of uint64 numbers (SplitMix64; Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
