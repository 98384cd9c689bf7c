"""Indices of tar files: the offset and size of each member, grouped to samples as WebDataset does.

The members `a/0.jpg` and `a/0.cls`, one after the other, are the sample `a/0` with the extensions `jpg` and `cls`. A
name is cut at the first dot of its last part. A file is scanned once, and the result is stored
(`core/data/kept_index.py`).
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from core.data.files import BadExampleError, open_file, reading
from core.data.kept_index import kept_index
from core.errors import DataError

_MAGIC = b"TAPELOOP TAR 1\n\n"
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_GZIP = b"\x1f\x8b"
_AGAIN = "write or copy it again"

_BLOCK = 512  # bytes, the unit of a tar file
_AT_ONCE = 2**20
_MOST_EXTENDED = 2**20  # bytes of a member's extended header, which holds a long name
_LONG_NAME, _EXTENDED = b"L", b"x"  # kinds of members that describe the next one
_OTHER_HEADERS = b"gK"  # global settings, and the target of a link
_SPARSE = b"GNU.sparse."
_RECORD = re.compile(rb"\d+ ([^=]+)=", re.DOTALL)  # of an extended header: length, name, and then its value


class TarFile:
    """A tar file of samples with its index. `places` [samples, extensions, 2] are offsets and sizes, -1 if missing."""

    def __init__(self, path: Path):
        self.path = path
        self._modified, index = kept_index(path, "tar", _MAGIC, lambda size: _packed(*_walked(path)))
        length = int.from_bytes(index[:8], "little")
        self.keys, self.extensions = json.loads(index[8 : 8 + length])
        places = np.frombuffer(index[8 + length :], "<i8")
        self.places: npt.NDArray[np.int64] = places.reshape(len(self.keys), len(self.extensions), 2)

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, extension: str, numbers: Sequence[int]) -> list[bytes]:
        """Returns the contents of the samples' members with this extension."""
        column = self.extensions.index(extension)
        try:
            with open_file(self.path) as file:
                if os.fstat(file.fileno()).st_mtime_ns != self._modified:
                    raise BadExampleError(
                        f"{self.path} has changed since the run began; leave it as it is while it runs."
                    )
                places = self.places[list(numbers), column].tolist()
                return [os.pread(file.fileno(), size, offset) for offset, size in places]
        except OSError as error:
            raise BadExampleError(f"{self.path} can't be read: {error.strerror}.") from error

    def extensions_of(self, number: int) -> list[str]:
        return [name for name, (offset, _) in zip(self.extensions, self.places[number], strict=True) if offset >= 0]

    def name_of(self, number: int) -> str:
        """Returns a sample's name in errors: "sample `a/0` of FILE"."""
        return f"sample `{self.keys[number]}` of {self.path}"


Sample = tuple[str, dict[str, tuple[int, int]]]  # its key, and the offset and size for each extension


def _walked(path: Path) -> tuple[list[Sample], list[str]]:
    """Returns the samples and extensions of a tar file. A file that is damaged or cut off raises a `DataError`."""
    samples: list[Sample] = []
    extensions: dict[str, None] = {}
    with reading(path) as file:
        for member, offset, size in _members(path, file):
            name = _NAME.fullmatch(member)
            if name is None:  # belongs to no sample
                continue
            key, extension = name[1], name[2].lower()
            if not samples or samples[-1][0] != key:
                samples.append((key, {}))
            if extension in samples[-1][1]:
                raise DataError(f"`{member}` of {path} is in its sample twice; write the file again with each once.")
            samples[-1][1][extension] = (offset, size)
            extensions.setdefault(extension)
    return samples, list(extensions)


def _members(path: Path, file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yields the name, offset and size of each regular file in a tar file (POSIX.1-2001, GNU or older).

    Python's `tarfile` takes a damaged header for the end, and needs four times as long.
    """
    total, at = os.fstat(file.fileno()).st_size, 0
    name, extended = b"", dict[bytes, bytes]()  # that an earlier header gives to the next member
    while any(header := _block(path, file, at)):
        kind, size = header[156:157], _number(header[124:136])
        size = _number(extended[b"size"], 10) if extended.get(b"size") else size
        check = 256 + sum(header) - sum(header[148:156])
        if check != _number(header[148:156]) or size < 0:
            raise _no_header(path, at, header)
        offset, at = at + _BLOCK, at + _BLOCK + -(-size // _BLOCK) * _BLOCK
        if at > total:
            raise DataError(f"{path} is cut off: it ends within a member; {_AGAIN}.")
        if kind in (_LONG_NAME, _EXTENDED) and size <= _MOST_EXTENDED:
            content = os.pread(file.fileno(), size, offset)
            if kind == _LONG_NAME:
                name = content.partition(b"\0")[0]
            else:
                extended = _extended(content)
            continue
        if kind in _OTHER_HEADERS:
            continue
        if kind == b"S" or any(key.startswith(_SPARSE) for key in extended):
            raise DataError(
                f"{path} has a member, at byte {offset - _BLOCK:,}, in the form of a sparse file; {_AGAIN}."
            )
        if kind in (b"0", b"\0", b"7"):
            prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
            plain = header[:100].partition(b"\0")[0]
            whole = extended.get(b"path") or name or (prefix + b"/" + plain if prefix else plain)
            if not whole.endswith(b"/"):  # a folder, in the oldest format
                yield whole.decode("utf-8", "surrogateescape"), offset, size
        name, extended = b"", {}
    _check_end(path, file, at)


def _block(path: Path, file: BinaryIO, at: int) -> bytes:
    block = os.pread(file.fileno(), _BLOCK, at)
    if len(block) == _BLOCK:
        return block
    if at == 0:
        raise DataError(f"{path} isn't a tar file: it has {len(block)} bytes; {_AGAIN}.")
    raise DataError(f"{path} is cut off: it has no mark of its end behind its last whole member; {_AGAIN}.")


def _number(field: bytes, base: int = 8) -> int:
    """Returns the number in a field: octal, or binary if it is large. It is -1, as no checksum is, if damaged."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", base)
    except ValueError:
        return -1


def _extended(content: bytes) -> dict[bytes, bytes]:
    """Returns the records of an extended header: `LENGTH NAME=VALUE` and the end of a line, where LENGTH is of all."""
    found, at = {}, 0
    while record := _RECORD.match(content, at):
        length = int(record[0].partition(b" ")[0])
        found[record[1]] = content[record.end() : at + length - 1]
        at += max(length, 1)
    return found


def _check_end(path: Path, file: BinaryIO, end: int) -> None:
    """Raises a `DataError` unless only zeros follow the last member."""
    file.seek(end)
    while more := file.read(_AT_ONCE):
        if any(more):
            raise DataError(
                f"{path} has other content behind its end, at byte {end:,}, as after `cat a.tar b.tar`; give one tar "
                "file after the other."
            )


def _no_header(path: Path, at: int, header: bytes) -> DataError:
    if header.startswith(_GZIP):
        return DataError(
            f"{path} is compressed (GZIP), and only a plain tar file can be read at any place: `gunzip` it; images in "
            "it are compressed already."
        )
    if at == 0:
        return DataError(f"{path} isn't a tar file: it begins with {header[:4].hex(' ')}; {_AGAIN}.")
    return DataError(f"{path} is damaged at byte {at:,}, where a member or the end should begin; {_AGAIN}.")


def _packed(samples: Sequence[Sample], extensions: Sequence[str]) -> bytes:
    places = [[found.get(extension, (-1, -1)) for extension in extensions] for _, found in samples]
    names = json.dumps([[key for key, _ in samples], extensions]).encode()
    return len(names).to_bytes(8, "little") + names + np.array(places, "<i8").tobytes()
