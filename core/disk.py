"""Writes files atomically, even if the disk is full or the process is killed.

Python's `OSError` doesn't name the file that could not be written; `space_for` names it.

>>> import pathlib
>>> with space_for("/dev/full"):  # doctest: +ELLIPSIS
...     pathlib.Path("/dev/full").write_text("figures")
Traceback (most recent call last):
...
core.errors.NoRoomError: `/dev/full` can't be written: No space left on device. Make room there (`df -h` and ...
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path

from core.errors import NoRoomError

# Leftovers of killed processes: unfinished files of `write_whole`, and those of earlier versions.
_UNFINISHED = re.compile(r"\.write-(\d+)|\.(?:.+\.)?(\d+)\.tmp|(?:run|result)\.(\d+)\.tmp", re.DOTALL)
_UNFINISHED_FOLDER = re.compile(r"\.(.+)\.(\d+)\.tmp", re.DOTALL)
_REMEDIES = {
    errno.ENOSPC: "Make room there (`df -h` and `df -i` show what is left)",
    errno.EDQUOT: "Your quota is used up (`quota -s` shows it): remove files, or ask for more",
    errno.EFBIG: "Files may not become that large here: raise the limit (`ulimit -f`), or use another file system",
}
FULL = tuple(_REMEDIES)  # the numbers of such errors
GOES_ON = "the same command then resumes from the last checkpoint"


@contextlib.contextmanager
def space_for(path: os.PathLike[str] | str, *, then: str = GOES_ON) -> Iterator[None]:
    """Turns a full disk's `OSError` in its `with` block into a `NoRoomError` that names `path`.

    The error ends with `then`: what happens once there is room.
    """
    try:
        yield
    except OSError as error:
        full = disk_full(error, path, then=then)
        if full is None:
            raise
        raise full from error


def disk_full(error: OSError, path: os.PathLike[str] | str | None = None, *, then: str = GOES_ON) -> NoRoomError | None:
    """Returns a `NoRoomError` if `error` is due to a full disk, a quota or a size limit; else `None`."""
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None:
        return None
    name = path or error.filename
    which = f"`{os.fspath(name)}`" if isinstance(name, str | os.PathLike) else "a file"
    return NoRoomError(f"{which} can't be written: {os.strerror(error.errno or 0)}. {remedy}; {then}.")


def append_whole(stream: FileIO, content: bytes) -> None:
    """Appends all of `content` to an unbuffered file. If the disk is full, undoes that and raises the error."""
    length, rest = stream.seek(0, os.SEEK_END), memoryview(content)
    try:
        while rest:  # a nearly full disk may accept only a part
            rest = rest[stream.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            stream.truncate(length)
        raise


def unfinished(path: Path) -> Path:
    """Returns the temporary path under which this process writes the file `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def unfinished_folder(parent: Path, pid: int | None = None) -> Path:
    """Returns the temporary path of a folder in `parent` that the process `pid` (default: this one) is filling."""
    return parent / f".{pid or os.getpid()}.tmp"


def write_whole(contents: Mapping[Path, bytes], *, then: str = GOES_ON) -> None:
    """Writes files under temporary names. Once all are written, renames them to their paths."""
    try:
        for path, content in contents.items():
            with space_for(path, then=then), unfinished(path).open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        for path in contents:
            with space_for(path, then=then):
                unfinished(path).replace(path)
    except BaseException:
        for path in contents:
            with contextlib.suppress(OSError):
                unfinished(path).unlink(missing_ok=True)
        raise


def remove_unfinished(folders: Iterable[Path]) -> None:
    """Removes temporary files that ended processes left in `folders`; prints a warning if this fails."""
    for folder in folders:
        try:
            for path in folder.iterdir() if folder.is_dir() else ():
                found = _UNFINISHED.fullmatch(path.name)
                if found and not _is_another(pid := int(next(filter(None, found.groups())))):
                    _remove(path, is_ours=path.name == unfinished_folder(folder, pid).name)
        except OSError as error:
            print(f"Warning: `{folder}` could not be searched for leftovers: {error.strerror}.", flush=True)


def remove_unfinished_folders(parent: Path, name: str | None = None) -> None:
    """Removes temporary folders that ended processes left in `parent`.

    With `name`, removes only those for the folder `name`. Use it in a folder that other people write to.
    """
    with contextlib.suppress(OSError):  # a later write there reports the error
        for path in parent.iterdir():
            found = _UNFINISHED_FOLDER.fullmatch(path.name)
            if found and name in (None, found[1]) and path.is_dir() and not _is_another(int(found[2])):
                _remove(path, is_ours=True)


def _remove(path: Path, *, is_ours: bool) -> None:
    """Removes a file. Removes a folder only if `is_ours`."""
    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        elif is_ours:
            shutil.rmtree(path)
    except OSError as error:
        print(f"Warning: `{path}` could not be removed: {error.strerror}.", flush=True)


def _is_another(pid: int) -> bool:
    """Says whether a process with the number `pid`, other than this one, is alive. Any user may own it."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
