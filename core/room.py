"""A full disk, said by the file that there was no room for: an `OSError` of a write knows no name.

>>> import pathlib
>>> with room_for("/dev/full"):  # doctest: +ELLIPSIS
...     pathlib.Path("/dev/full").write_text("figures")
Traceback (most recent call last):
...
core.errors.NoRoomError: `/dev/full` can't be written: No space left on device. Make room there (`df -h` and ...
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from core.errors import NoRoomError

_REMEDIES = {
    errno.ENOSPC: "Make room there (`df -h` and `df -i` show what is left)",
    errno.EDQUOT: "Your quota is used up (`quota -s` shows it): remove files, or ask for more",
    errno.EFBIG: "Files may not become that large here: raise the limit (`ulimit -f`), or use another file system",
}


@contextlib.contextmanager
def room_for(path: os.PathLike[str] | str) -> Iterator[None]:
    """Raises a `NoRoomError` that names `path` where it can't be written because a disk is full."""
    try:
        yield
    except OSError as error:
        full = disk_full(error, path)
        if full is None:
            raise
        raise full from error


def disk_full(error: OSError, path: os.PathLike[str] | str | None = None) -> NoRoomError | None:
    """Returns what to say where `error` comes of a full disk, a quota or a limit; else `None`."""
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None:
        return None
    name = path or error.filename
    which = f"`{os.fspath(name)}`" if isinstance(name, str | os.PathLike) else "a file"
    return NoRoomError(
        f"{which} can't be written: {os.strerror(error.errno or 0)}. {remedy}; the same command then goes on from the "
        "last checkpoint."
    )
