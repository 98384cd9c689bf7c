"""Copies a run from its address to its local folder: whole checkpoints, newest first, and then all other files."""

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from core.checkpoint import DamagedError, checkpoints_in, verified
from core.checkpoint.files import TEMPORARY, free_name, put_in_place, step_of_name
from core.checkpoint.manifest import MANIFEST
from core.disk import space_for
from core.errors import CheckpointError, ConfigurationError
from core.storage import Bucket, StorageError, Stored
from trainers.storage.owner import OWNER, Owner, read_owner, wrote_last

CHECKPOINTS = "checkpoints"
RESULT = "result.json"  # removed when an ended run resumes
Say = Callable[[str], object]


def checkpoint_names(names: Mapping[str, object]) -> list[str]:
    """Returns the names of whole checkpoints among the names of objects, newest first."""
    found = [Path(name) for name in names if name.startswith(f"{CHECKPOINTS}/") and name.endswith(f"/{MANIFEST}")]
    named = {path.parent.name: step_of_name(path.parent) for path in found if len(path.parts) == 3}
    return sorted((name for name, step in named.items() if step is not None), key=_order, reverse=True)


def _order(name: str) -> tuple[int, str]:
    """Sorts names of checkpoints by their steps, which have nine digits or more."""
    return len(name), name


def download(bucket: Bucket, folder: Path, owner: Owner | None, say: Say) -> None:
    """Makes the folder what the address holds, unless this folder wrote last. One process at a time does so."""
    with _alone(folder):
        objects = _download(bucket, folder, owner, say)
        if objects is not None:
            _download_files(bucket, folder, objects)
            if RESULT not in objects:
                (folder / RESULT).unlink(missing_ok=True)


def download_checkpoints(bucket: Bucket, folder: Path, say: Say) -> None:
    """Makes the folder's checkpoints those of the address. A worker that isn't the chief needs no other file."""
    with _alone(folder):
        _download(bucket, folder, read_owner(bucket), say)


def _download(bucket: Bucket, folder: Path, owner: Owner | None, say: Say) -> Mapping[str, Stored] | None:
    """Makes the folder's checkpoints those of the address. Returns all objects there, or None if it changes nothing."""
    objects = bucket.objects()
    there = checkpoint_names(objects)
    here = [path.name for _, path in checkpoints_in(folder / CHECKPOINTS)]
    newest_there, newest_here = there[0] if there else "", here[0] if here else ""
    if wrote_last(folder, owner) and _order(newest_here) >= _order(newest_there):
        return None
    if not objects.keys() - {OWNER}:
        return None
    if _order(newest_here) > _order(newest_there):
        raise ConfigurationError(
            f"the local folder `{folder}` of `{bucket.address}` is at {newest_here}, but another machine has "
            f"written there since, and is at {newest_there or 'no checkpoint'}. To continue that run, move the "
            "local folder away. To continue this one, give another address with `--workdir`."
        )
    _download_checkpoints(bucket, folder, objects, there, say)
    for name in set(here) - set(there):
        shutil.rmtree(folder / CHECKPOINTS / name)
    return objects


def _download_checkpoints(
    bucket: Bucket, folder: Path, objects: Mapping[str, Stored], names: list[str], say: Say
) -> None:
    problems, usable = [], 0
    for name in names:
        base, target = f"{CHECKPOINTS}/{name}", folder / CHECKPOINTS / name
        manifest = bucket.read(f"{base}/{MANIFEST}")
        if manifest is None:
            continue  # another machine has removed it meanwhile
        if (target / MANIFEST).is_file() and (target / MANIFEST).read_bytes() == manifest:
            usable += 1
            continue
        files = {each: stored for each, stored in objects.items() if each.startswith(f"{base}/")}
        say(f"downloading `{name}` from `{bucket.address}`: {sum(x.bytes for x in files.values()) / 1e6:,.1f} MB")
        temporary = free_name(target.with_name(f"{TEMPORARY}{name}"))
        temporary.mkdir(parents=True)
        try:
            with space_for(target):
                for each, stored in files.items():
                    bucket.download(each, temporary / Path(each).name, stored)
            verified(temporary)
            put_in_place(temporary, target, say)
            usable += 1
        except StorageError:
            if bucket.read(f"{base}/{MANIFEST}") is not None:
                raise
            say(f"`{name}` was removed from `{bucket.address}` meanwhile")
        except DamagedError as error:
            problems.append(f"`{name}`: {error}")
            say(f"Warning: checkpoint `{name}` at `{bucket.address}` is damaged and was skipped: {error}.")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    if problems and not usable:
        raise CheckpointError(
            f"None of the checkpoints at `{bucket.address}` can be used: {'; '.join(problems)}. Put back a good copy "
            "of one of them, or give another address with `--workdir`."
        )


def _download_files(bucket: Bucket, folder: Path, objects: Mapping[str, Stored]) -> None:
    for name, stored in objects.items():
        path = folder / name
        hidden = any(part.startswith(".") for part in Path(name).parts)
        if name.startswith(f"{CHECKPOINTS}/") or name == OWNER or hidden:
            continue
        if not stored.is_copied(path):
            with space_for(path):
                _download_file(bucket, name, path, stored)


def _download_file(bucket: Bucket, name: str, path: Path, stored: Stored) -> None:
    """Downloads a file that another machine may be replacing, such as the metrics of a run that trains."""
    while True:
        try:
            return bucket.download(name, path, stored)
        except StorageError:
            now = bucket.objects(name).get(name)
            if now is None:
                return None  # removed meanwhile
            if now == stored:
                raise
            stored = now


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for other processes that download to the same folder, such as workers of the same run."""
    with space_for(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".download.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
