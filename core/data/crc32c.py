"""CRC-32C (Castagnoli), TFRecord's checksum, for many byte strings at once.

Apart from its first and last step, the checksum is linear. So a text is cut into strips, whose checksums are computed
in parallel with tables. Each is advanced by the number of bytes after its strip. The exclusive or of the results is the
text's checksum.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Sums = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # with its bits reversed
_STRIP = 256  # bytes
_AT_ONCE = 1024  # strips, whose intermediate values fit into a cache
_ALL = np.uint32(0xFFFFFFFF)
_MOST_BITS = 48  # of a byte count


def crc32c(pieces: Sequence[bytes]) -> Sums:
    """Returns the checksum of each of `pieces` as a uint32 array.

    >>> [hex(x) for x in crc32c([b"123456789", b""])]
    ['0xe3069283', '0x0']
    """
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    strips = -(-lengths // _STRIP)
    ends = np.cumsum(strips) * _STRIP
    content = np.zeros(int(strips.sum()) * _STRIP, np.uint8)
    for piece, end in zip(pieces, ends.tolist(), strict=True):  # zeros before a piece change nothing
        content[end - len(piece) : end] = np.frombuffer(piece, np.uint8)
    rows = content.reshape(-1, _STRIP)
    by_place, places = _tables()[0], np.arange(_STRIP) * 256
    parts = (rows[at : at + _AT_ONCE] for at in range(0, len(rows) or 1, _AT_ONCE))
    sums = np.concatenate([np.bitwise_xor.reduce(by_place.take(part + places), axis=1) for part in parts])
    follow = (np.repeat(np.cumsum(strips), strips) - 1 - np.arange(len(sums))) * _STRIP
    total = np.zeros(len(pieces), np.uint32)
    some = lengths > 0
    if some.any():
        total[some] = np.bitwise_xor.reduceat(_moved_on(sums, follow), (ends // _STRIP - strips)[some])
    return total ^ _moved_on(np.full(len(pieces), _ALL), lengths) ^ _ALL


def _moved_on(sums: Sums, zeros: npt.NDArray[np.int64]) -> Sums:
    """Returns what the checksums `sums` become if each text gets `zeros` more zero bytes."""
    for bit in range(int(zeros.max(initial=0)).bit_length()):
        which = np.flatnonzero(zeros >> bit & 1)
        sums[which] = _through(_tables()[1][bit], sums[which])
    return sums


def _through(table: Sums, sums: Sums) -> Sums:
    """Applies a linear map of 32 bits to `sums`. `table[i, b]` is the map's value for byte b at position i."""
    return table[0, sums & 255] ^ table[1, sums >> 8 & 255] ^ table[2, sums >> 16 & 255] ^ table[3, sums >> 24]


@functools.cache
def _tables() -> tuple[Sums, list[Sums]]:
    """Returns the checksum of each byte at each position of a strip, and the maps that append 1, 2, 4, ... zeros."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, one >> 1 ^ np.uint32(_POLYNOMIAL), one >> 1).astype(np.uint32)
    by_place = np.empty([_STRIP, 256], np.uint32)
    by_place[-1] = one
    for place in range(_STRIP - 2, -1, -1):
        by_place[place] = one[by_place[place + 1] & 255] ^ by_place[place + 1] >> 8
    bytes_at = np.arange(256, dtype=np.uint32)[None] << np.array([[0], [8], [16], [24]], np.uint32)
    maps = [one[bytes_at & 255] ^ bytes_at >> 8]
    for _ in range(_MOST_BITS):
        maps.append(_through(maps[-1], maps[-1]))
    return by_place.reshape(-1), maps
