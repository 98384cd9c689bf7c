"""Writes, renames and removes a checkpoint's files atomically."""

import contextlib
import errno
import hashlib
import itertools
import os
import re
import shutil
import stat
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, BinaryIO

Warn = Callable[[str], object]

TEMPORARY = ".tmp-"  # prefix of anything being written or removed, which isn't a checkpoint
_REPLACED = ".replaced"  # suffix of a checkpoint that another of the same step is about to replace
_NAME = re.compile(rf"step-(\d{{9,}})({re.escape(_REPLACED)})?")
_DESCRIPTORS = "/proc/self/fd/"
_PATTERN = re.compile(r"[\[*?\\\udc80-\udcff]")  # the last are Python's spelling of bytes that aren't UTF-8


def path_of(directory: Path, step: int) -> Path:
    """Returns the path of the checkpoint of `step`: `directory/step-000001000`."""
    return directory / f"step-{step:09d}"


def checkpoints_in(directory: Path) -> list[tuple[int, Path]]:
    """Returns `[(step, path), ...]`, newest step first. For one step, `step-...` precedes `step-....replaced`."""
    if not directory.exists():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    steps = [(int(match[1]), path) for match, path in found if match]
    return sorted(steps, key=lambda step_and_path: (-step_and_path[0], step_and_path[1].name))


def step_of_name(path: Path) -> int | None:
    """Returns the step in the name of the checkpoint folder `path`, or `None` if a user has renamed the folder."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


@contextlib.contextmanager
def plainly_named(directory: Path) -> Iterator[str]:
    """Yields a name for `directory` that TensorFlow can read: `directory` itself, or `/proc/self/fd/<number>`.

    TensorFlow treats a checkpoint's path as UTF-8 and as a shell pattern, in which `[`, `*`, `?` and `\\` are special.
    TensorFlow's messages then have the name `/proc/...`; `reason` puts `directory` back.
    """
    if not _PATTERN.search(str(directory)):
        yield str(directory)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{_DESCRIPTORS}{descriptor}"
    finally:
        os.close(descriptor)


def free_name(path: Path) -> Path:
    """Returns `path` if it is unused, else the first unused one of `path-2`, `path-3`, ..."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{i}") for i in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def put_in_place(temporary: Path, target: Path, warn: Warn) -> None:
    """Renames `temporary` to `target`. An earlier checkpoint at `target` is renamed first, and deleted last."""
    replaced = target.with_name(target.name + _REPLACED)
    if os.path.lexists(target):
        target.rename(replaced)
    temporary.rename(target)
    sync(target.parent)
    _remove(replaced, warn)


def remove_leftovers(directory: Path, warn: Warn) -> None:
    """Removes files and folders that a killed process was writing or removing in `directory`."""
    for path in directory.glob(f"{TEMPORARY}*"):
        _remove(path, warn)
    for path in directory.glob(f"*{_REPLACED}"):
        if path.with_name(path.name.removesuffix(_REPLACED)).exists():
            _remove(path, warn)


def remove_old(directory: Path, step: int, kept: Container[int], warn: Warn) -> None:
    """Removes every checkpoint up to `step`, except steps in `kept`."""
    for of, path in checkpoints_in(directory):
        if of <= step and of not in kept:
            _remove(path, warn)


def _remove(path: Path, warn: Warn) -> None:
    """Removes a checkpoint or a leftover. It is renamed first, so that no reader sees half of it.

    If it can't be removed (no permission, or a file that NFS keeps open), the function warns and the run continues.
    """
    doomed = path
    try:
        if not path.name.startswith(TEMPORARY):
            doomed = path.rename(free_name(path.with_name(f"{TEMPORARY}removed-{path.name}")))
        if doomed.is_dir() and not doomed.is_symlink():
            shutil.rmtree(doomed)
        else:
            doomed.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        warn(f"`{doomed}` could not be removed: {reason(error)}. The run continues; remove it by hand.")


def sync(path: Path) -> None:
    """Waits until the disk has the contents of `path`: a file's bytes, or a directory's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_and_drop(file: Path) -> None:
    """Waits until a file's bytes are on the disk, and drops them from the cache. Later reads then use the disk."""
    sync(file)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a regular file for reading. Pipes and devices could block forever, so they raise an `OSError`."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It isn't a plain file", str(path))
        yield stream


def seal(file: Path) -> dict[str, Any]:
    sync(file)
    return {"bytes": file.stat().st_size, "sha256": file_sha256(file)}


def file_sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with plain_file(file) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def reason(error: Exception, directory: Path | None = None) -> str:
    """Returns `error` as a short text, with `directory` in place of the name from `plainly_named`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} (`{error.filename}`)" if error.filename else error.strerror
    text = str(error).strip().split("\n")[0].rstrip(".")
    return text if directory is None else re.sub(rf"{_DESCRIPTORS}\d+", lambda _: str(directory), text)
