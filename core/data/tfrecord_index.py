"""Indices of TFRecord files: the offset of each record, so that any record can be read by number.

A record has its length (8 bytes), the length's checksum (4), the content, and the content's checksum (4). So the offset
of a record follows only from the records before it. A file is scanned once, and the offsets are stored
(`core/data/kept_index.py`).
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.data.crc32c import crc32c
from core.data.files import BadExampleError, open_file
from core.data.kept_index import kept_index
from core.errors import DataError

Places = npt.NDArray[np.int64]

AROUND = 16  # bytes of a record besides its content
_LENGTH = struct.Struct("<QI")
_MAGIC = b"TAPELOOP INDEX1\n"
_GZIP = b"\x1f\x8b"


class IndexedFile:
    """A TFRecord file and its index. Record i has the bytes from `places[i]` to `places[i + 1]`."""

    def __init__(self, path: Path, modified: int, places: Places):
        self.path, self.places = path, places
        self._modified = modified  # nanoseconds
        self._proved = np.zeros(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.places) - 1

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the records with these numbers. A record's checksum is verified when it is first read."""
        try:
            with open_file(self.path) as file:
                state = os.fstat(file.fileno())
                if (state.st_size, state.st_mtime_ns) != (self.places[-1], self._modified):
                    raise BadExampleError(
                        f"{self.path} has changed since the run began; leave it as it is while it runs."
                    )
                ends = [(int(self.places[i]), int(self.places[i + 1])) for i in numbers]
                read = [os.pread(file.fileno(), end - begin, begin) for begin, end in ends]
        except OSError as error:
            raise BadExampleError(f"{self.path} can't be read: {error.strerror}.") from error
        new = [i for i, number in enumerate(numbers) if not self._proved[number]]
        self._prove([numbers[i] for i in new], [read[i] for i in new])
        return [each[12:-4] for each in read]

    def name_of(self, number: int) -> str:
        """Returns a record's name in errors: "record 3 of FILE (at byte 120)"."""
        return f"record {number} of {self.path} (at byte {self.places[number]})"

    def _prove(self, numbers: Sequence[int], read: Sequence[bytes]) -> None:
        """Raises a `BadExampleError` if the length or checksum of a record in `read` is wrong."""
        sums = masked([each[12:-4] for each in read])
        for number, each, found in zip(numbers, read, sums.tolist(), strict=True):
            length, _ = _LENGTH.unpack_from(each)
            if length != len(each) - AROUND or found != int.from_bytes(each[-4:], "little"):
                raise BadExampleError(
                    f"{self.name_of(number)} is damaged: its check sum is another; write or copy the file again."
                )
            self._proved[number] = True


def index_of(path: Path) -> IndexedFile:
    """Returns a file with its index, which is read if it is stored, and otherwise made and stored."""
    modified, places = kept_index(path, "tfrecord", _MAGIC, lambda size: _walked(path, size).astype("<i8").tobytes())
    return IndexedFile(path, modified, np.frombuffer(places, "<i8").astype(np.int64))


def masked(pieces: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Returns the checksum of each of `pieces` in the form that TFRecord stores."""
    sums = crc32c(pieces)
    return (sums >> 15 | sums << 17) + np.uint32(0xA282EAD8)


def _walked(path: Path, size: int) -> Places:
    """Returns each record's offset, then the file's size. A file that is cut off raises a `DataError`."""
    places, at = [0], 0
    with open_file(path) as file:
        while at < size:
            start = file.read(_LENGTH.size)
            length, check = _LENGTH.unpack(start) if len(start) == _LENGTH.size else (size, 0)
            if at == 0 and (length + AROUND > size or masked([start[:8]])[0] != check):
                raise _no_records(path, start, size)
            at += AROUND + length
            if at > size:
                raise _broken(path, places, size)
            places.append(at)
            file.seek(length + 4, os.SEEK_CUR)
    return np.array(places, np.int64)


def _no_records(path: Path, start: bytes, size: int) -> DataError:
    if start.startswith(_GZIP):
        return DataError(
            f"{path} is compressed (GZIP), and only a plain file can be read at any place: `gunzip -c` it into another "
            "file, or write it without compression."
        )
    return DataError(
        f"{path} ({size:,} bytes) doesn't begin with a record of TFRecord: it is cut off, compressed (ZLIB), or "
        "something else; give plain files that `tf.io.TFRecordWriter` wrote."
    )


def _broken(path: Path, places: Sequence[int], size: int) -> DataError:
    """Returns an error that names the first record with a damaged length, or says that the file is cut off."""
    with open_file(path) as file:
        for number, at in enumerate(places):
            file.seek(at)
            start = file.read(_LENGTH.size)
            if len(start) == _LENGTH.size and masked([start[:8]])[0] != _LENGTH.unpack(start)[1]:
                return DataError(
                    f"record {number} of {path} (at byte {at}) is damaged: the check sum of its length is another; "
                    "write or copy the file again."
                )
    return DataError(
        f"record {len(places) - 1} of {path} (at byte {places[-1]}) is cut off: the file ends at byte {size}; copy it "
        "again, or wait until it is written."
    )
