"""Opens data files without blocking, and rejects those that declare an impossible size.

The size that a file declares is compared with the size of the file before memory is allocated. A few bytes can declare
more than any machine holds, and ten megabytes of gzip can expand to ten gigabytes.
"""

import contextlib
import glob
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from core.errors import ConfigurationError, DataError, shown
from core.machine import machine_memory
from core.storage import cached, is_address

# According to zlib's authors, deflate compresses at most 1032 to one. A larger claim is damaged or malicious.
_MOST_DEFLATED = 1032
_KINDS = {stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class BadExampleError(DataError, ValueError):  # TensorFlow keeps the name of a `ValueError` in the error it makes of it
    """An example can't be read, or differs from its declared features."""


def bad_example(message: str) -> DataError | None:
    """Returns a `DataError` if TensorFlow's error text `message` quotes a `BadExampleError`; else `None`."""
    found = re.search(rf"{BadExampleError.__name__}: (.*)", message)
    return DataError(found[1]) if found else None


def path_of(name: str | os.PathLike[str], argument: str = "path", example: str = "'data/train'") -> Path:
    """Returns the absolute path of `name` in a configuration. File names are UTF-8, whatever the locale.

    An error for a name that isn't text calls it `argument`, and shows the example.

    An address such as `s3://bucket/train.csv` is downloaded to the user's cache before.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigurationError(f"`{argument}` is {shown(name)}; give one path as text, such as {example}.")
    if is_address(os.fsdecode(name)):
        return cached(os.fsdecode(name))
    return Path(os.fsdecode(os.fspath(name).encode("utf-8", "surrogateescape"))).expanduser().absolute()


def list_matches(argument: str, pattern: str) -> list[Path]:
    """Lists the files that match `pattern`, sorted: a name, or a glob such as 'data/**/*.csv'. Folders are skipped."""
    path, here = path_of(pattern, argument, "'data/*' for several files"), Path.cwd()
    if path.exists():
        return [] if path.is_dir() else [path]
    root = here if path.is_relative_to(here) else Path(path.anchor)  # a prefix that isn't a pattern
    names = glob.glob(str(path.relative_to(root)), root_dir=root, recursive=True)
    return sorted(root / name for name in names if not (root / name).is_dir())


def list_files(argument: str, pattern: str) -> list[Path]:
    """Lists the files that match `pattern`; raises a `DataError` that names `argument` if there are none."""
    found = list_matches(argument, pattern)
    if not found:
        path = path_of(pattern)
        instead = "is a folder" if path.is_dir() else "names no file"
        raise DataError(f"`{argument}` is {shown(pattern)}: {path} {instead}; give a file, or a pattern with `*`.")
    for path in found:
        if not path.exists():
            raise DataError(f"`{argument}` names {path}, a link to a file that isn't there; mend it, or take it away.")
    return found


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file to read bytes; raises a `DataError` for a pipe or a device."""
    kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    if kind is not None:
        raise DataError(f"{path} is {kind} and no file of data; put the file itself in its place, or take it away.")
    return path.open("rb")


@contextlib.contextmanager
def reading(path: Path, advice: str = "check what it is and who may read it") -> Iterator[BinaryIO]:
    """Opens a regular file to read bytes; turns an `OSError` into a `DataError` with the path and `advice`."""
    try:
        with open_file(path) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}; {advice}.") from error


def check_claim(path: Path, claim: str, *, claimed: int, deflated: int | None = None) -> None:
    """Raises a `DataError` if memory can't hold `claimed` bytes, or `deflated` bytes can't expand to that many."""
    if deflated is not None and claimed > _MOST_DEFLATED * deflated:
        raise DataError(
            f"{path} says that it holds {claim}, {claimed:,} bytes, but {deflated:,} compressed bytes can't hold so "
            "much: it is damaged, or made to fill memory; download it again from a source that you trust."
        )
    memory = machine_memory()
    if claimed > memory:
        raise DataError(
            f"{path} says that it holds {claim}, {claimed:,} bytes, more than the {memory:,} of this machine's memory; "
            "it is read whole: cut it into smaller files, or download it again if it should be smaller."
        )
