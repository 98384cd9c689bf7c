"""Indices of data files, which are made once and stored.

A file's index is stored in `.NAME.index` in its folder, or in the user's cache if that folder isn't writable. It is
valid while the file's size and modification time stay the same. It is written atomically, so several processes may
make it at the same time.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

from core.data.files import open_file, reading
from core.disk import write_whole
from core.errors import NoRoomError, TapeloopError

_HEADER = struct.Struct("<16sqq")  # magic, size and modification time of the file; then the index, then its SHA-256


def kept_index(path: Path, kind: str, magic: bytes, make: Callable[[int], bytes]) -> tuple[int, bytes]:
    """Returns a file's modification time in nanoseconds, and its index, which `make(size)` makes if none is stored.

    `magic`, 16 bytes, names the index's format. In the user's cache it is in the folder `kind`.
    """
    with reading(path) as file:
        state = os.fstat(file.fileno())
    header = _HEADER.pack(magic, state.st_size, state.st_mtime_ns)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapeloop" / kind
    kept = [path.with_name(f".{path.name}.index"), cache / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.index"]
    for place in kept:
        index = _read(place, header)
        if index is not None:
            return state.st_mtime_ns, index
    index = make(state.st_size)
    for place in kept:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole({place: header + index + hashlib.sha256(index).digest()})
            break
        except (OSError, NoRoomError):  # without an index the next run scans again
            continue
    return state.st_mtime_ns, index


def _read(place: Path, header: bytes) -> bytes | None:
    """Reads the stored index `place`, or returns `None` if it is incomplete or the file has changed since."""
    try:
        with open_file(place) as file:
            content = file.read()
    except (OSError, TapeloopError):
        return None
    index, digest = content[len(header) : -32], content[-32:]
    return index if content[: len(header)] == header and hashlib.sha256(index).digest() == digest else None
