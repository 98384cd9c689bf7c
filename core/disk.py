"""Files on a disk that may be full, by a process that may be killed: whole, or not there at all.

An `OSError` of a write knows no name; `space_for` says by the file that there was no room.

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

# What a process that was killed leaves behind: unfinished files of `write_whole`, and those of versions before it.
_UNFINISHED = re.compile(r"\.write-(\d+)|\.(?:.+\.)?(\d+)\.tmp|(?:run|result)\.(\d+)\.tmp", re.DOTALL)
_UNFINISHED_FOLDER = re.compile(r"\.(.+)\.(\d+)\.tmp", re.DOTALL)
_REMEDIES = {
    errno.ENOSPC: "Make room there (`df -h` and `df -i` show what is left)",
    errno.EDQUOT: "Your quota is used up (`quota -s` shows it): remove files, or ask for more",
    errno.EFBIG: "Files may not become that large here: raise the limit (`ulimit -f`), or use another file system",
}
FULL = tuple(_REMEDIES)  # the numbers of such errors
GOES_ON = "the same command then goes on from the last checkpoint"


@contextlib.contextmanager
def space_for(path: os.PathLike[str] | str, *, then: str = GOES_ON) -> Iterator[None]:
    """Raises a `NoRoomError` that names `path` where it can't be written because a disk is full.

    `then` says what happens once there is room.
    """
    try:
        yield
    except OSError as error:
        full = disk_full(error, path, then=then)
        if full is None:
            raise
        raise full from error


def disk_full(error: OSError, path: os.PathLike[str] | str | None = None, *, then: str = GOES_ON) -> NoRoomError | None:
    """Returns what to say where `error` comes of a full disk, a quota or a limit; else `None`."""
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None:
        return None
    name = path or error.filename
    which = f"`{os.fspath(name)}`" if isinstance(name, str | os.PathLike) else "a file"
    return NoRoomError(f"{which} can't be written: {os.strerror(error.errno or 0)}. {remedy}; {then}.")


def append_whole(stream: FileIO, content: bytes) -> None:
    """Appends `content` to an unbuffered file; where there is no room for all of it, the file stays as it was."""
    length, rest = stream.seek(0, os.SEEK_END), memoryview(content)
    try:
        while rest:  # what a disk that is nearly full still takes may be less
            rest = rest[stream.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            stream.truncate(length)
        raise


def unfinished(path: Path) -> Path:
    """Returns the name under which this process makes what is to become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def unfinished_folder(parent: Path, pid: int | None = None) -> Path:
    """Returns the name under which a process, by default this one, makes what is to become a folder in `parent`."""
    return parent / f".{pid or os.getpid()}.tmp"


def write_whole(contents: Mapping[Path, bytes], *, then: str = GOES_ON) -> None:
    """Writes files, each of them whole, and puts none in its place before all are written."""
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
    """Removes what processes that are gone have left unfinished in these folders; warns where that fails."""
    for folder in folders:
        try:
            for path in folder.iterdir() if folder.is_dir() else ():
                found = _UNFINISHED.fullmatch(path.name)
                if found and not _is_another(pid := int(next(filter(None, found.groups())))):
                    _remove(path, is_ours=path.name == unfinished_folder(folder, pid).name)
        except OSError as error:
            print(f"Warning: `{folder}` could not be searched for leftovers: {error.strerror}.", flush=True)


def remove_unfinished_folders(parent: Path, name: str | None = None) -> None:
    """Removes folders that processes that are gone were making as `unfinished`: all of them, or what was to be `name`.

    By name it leaves alone what else lies in a folder that isn't ours.
    """
    with contextlib.suppress(OSError):  # who then writes there is told
        for path in parent.iterdir():
            found = _UNFINISHED_FOLDER.fullmatch(path.name)
            if found and name in (None, found[1]) and path.is_dir() and not _is_another(int(found[2])):
                _remove(path, is_ours=True)


def _remove(path: Path, *, is_ours: bool) -> None:
    """Removes a file, or a folder that is ours by its whole name."""
    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        elif is_ours:
            shutil.rmtree(path)
    except OSError as error:
        print(f"Warning: `{path}` could not be removed: {error.strerror}.", flush=True)


def _is_another(pid: int) -> bool:
    """Says whether a process of this number lives that isn't this one; it may not be ours to ask."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
