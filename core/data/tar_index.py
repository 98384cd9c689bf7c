"""Indices of tar files: the offset and size of each member, grouped to samples as WebDataset does.

The members `a/0.jpg` and `a/0.cls`, one after the other, are the sample `a/0` with the extensions `jpg` and `cls`. A
name is cut at the first dot of its last part. A file is scanned once, and the result is stored
(`core/data/kept_index.py`).
"""

import json
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from core.data.files import BadExampleError, open_file, reading
from core.data.kept_index import kept_index
from core.errors import DataError

_MAGIC = b"TAPELOOP TAR 1\n\n"
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_BLOCK = 512  # bytes, the unit of a tar file
_AT_ONCE = 2**20
_GZIP = b"\x1f\x8b"
_AGAIN = "write or copy it again"


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
    end = 0
    with reading(path) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    blocks = -(-member.size // _BLOCK) if member.isreg() else 0
                    end = member.offset_data + blocks * _BLOCK
                    name = _NAME.fullmatch(member.name)
                    if not member.isreg() or name is None:  # folders, and what belongs to no sample
                        continue
                    key, extension = name[1], name[2].lower()
                    if not samples or samples[-1][0] != key:
                        samples.append((key, {}))
                    if extension in samples[-1][1] or member.issparse():
                        raise DataError(
                            f"`{member.name}` of {path} is "
                            f"{'stored as a sparse file' if member.issparse() else 'in its sample twice'}; write the "
                            "file again, with each member once and whole."
                        )
                    samples[-1][1][extension] = (member.offset_data, member.size)
                    extensions.setdefault(extension)
        except (tarfile.TarError, EOFError) as error:
            raise _no_tar(path, file, error) from error
        _check_end(path, file, end)
    return samples, list(extensions)


def _packed(samples: Sequence[Sample], extensions: Sequence[str]) -> bytes:
    places = [[found.get(extension, (-1, -1)) for extension in extensions] for _, found in samples]
    names = json.dumps([[key for key, _ in samples], extensions]).encode()
    return len(names).to_bytes(8, "little") + names + np.array(places, "<i8").tobytes()


def _check_end(path: Path, file: BinaryIO, end: int) -> None:
    """Raises a `DataError` unless only zeros follow the last member. Python takes damage for the end of a tar file."""
    file.seek(end)
    mark = file.read(_BLOCK)
    if len(mark) < _BLOCK:
        raise DataError(f"{path} is cut off: it has no mark of its end behind its last whole member; {_AGAIN}.")
    if any(mark):
        raise DataError(f"{path} is damaged at byte {end:,}, where a member or the end should begin; {_AGAIN}.")
    while more := file.read(_AT_ONCE):
        if any(more):
            raise DataError(
                f"{path} has other content behind its end, at byte {end:,}, as after `cat a.tar b.tar`; give one tar "
                "file after the other."
            )


def _no_tar(path: Path, file: BinaryIO, error: Exception) -> DataError:
    file.seek(0)
    if file.read(2) == _GZIP:
        return DataError(
            f"{path} is compressed (GZIP), and only a plain tar file can be read at any place: `gunzip` it; images in "
            "it are compressed already."
        )
    what = " ".join(str(error).split()) or type(error).__name__
    if "end of data" in what or "truncated" in what:
        return DataError(f"{path} is cut off: it ends within a member; {_AGAIN}.")
    return DataError(f"{path} can't be read as a tar file: {what}; {_AGAIN}.")
