"""Copies a run from its local folder to its address, whatever that lacks.

A checkpoint's `manifest.json` names its files, with sizes and hashes. It is written last and removed first, so a
checkpoint at the address is whole if it has one.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from core.checkpoint import checkpoints_in, path_of
from core.checkpoint.files import step_of_name
from core.checkpoint.manifest import MANIFEST
from core.storage import Bucket, StorageError
from trainers.storage.download import CHECKPOINTS
from trainers.storage.owner import OWNER

_LINKS = ".upload"  # a folder with links to the files of the checkpoint that is being sent
_MOST_READ = 1 << 26  # bytes of a growing file that are read at once, so that the last line is whole
Seen = tuple[int, int, int]  # of a file: inode, time of change, size


class Upload:
    """The state of the copy: what was sent, and what is at the address."""

    def __init__(
        self,
        bucket: Bucket,
        folder: Path,
        confirm: Callable[[], None],
        progressed: Callable[[], None] = lambda: None,
    ):
        """`confirm` raises an error if this process may no longer write. `progressed` is called for each object."""
        self._bucket, self._folder, self._confirm, self._progressed = bucket, folder, confirm, progressed
        self._sent: dict[str, Seen | None] = {}  # files other than checkpoints'
        self._whole: dict[str, Seen] = {}  # checkpoints by name, with their manifests
        self._there: set[str] = set(bucket.objects())
        shutil.rmtree(folder / _LINKS, ignore_errors=True)
        self._sent |= dict.fromkeys(self._there & self._files().keys())
        for name, path in self._checkpoints().items():
            seen = _seen(path / MANIFEST)
            if seen and bucket.read(f"{CHECKPOINTS}/{name}/{MANIFEST}") == (path / MANIFEST).read_bytes():
                self._whole[name] = seen

    def lacking(self) -> list[str]:
        """Returns the names of checkpoints and files that the address lacks, or has in an older version."""
        return [*self._new_checkpoints(), *self._new_files()]

    @property
    def has_new_checkpoint(self) -> bool:
        """Returns whether a checkpoint isn't at the address yet."""
        return bool(self._new_checkpoints())

    def run(self) -> None:
        """Sends all that the address lacks, the newest checkpoint first. Removes what retention has removed here."""
        while new := self._new_checkpoints():
            self._send_checkpoint(*next(iter(new.items())))
        self._send_files()
        self._remove_old()

    def _checkpoints(self) -> dict[str, Path]:
        """Returns the local checkpoints by name, newest first."""
        found = checkpoints_in(self._folder / CHECKPOINTS)
        return {path.name: path for step, path in found if path == path_of(path.parent, step)}

    def _new_checkpoints(self) -> dict[str, Path]:
        seen = {name: (path, _seen(path / MANIFEST)) for name, path in self._checkpoints().items()}
        return {name: path for name, (path, of) in seen.items() if of is not None and self._whole.get(name) != of}

    def _files(self) -> dict[str, Path]:
        """Returns all other files of the run by name, without hidden and unfinished ones."""
        found = dict[str, Path]()
        for parent, folders, files in os.walk(self._folder):
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            if Path(parent) == self._folder and CHECKPOINTS in folders:
                folders.remove(CHECKPOINTS)
            for each in sorted(files):
                path = Path(parent, each)
                if not each.startswith(".") and each != OWNER and path.is_file() and not path.is_symlink():
                    found[path.relative_to(self._folder).as_posix()] = path
        return found

    def _new_files(self) -> dict[str, tuple[Path, Seen]]:
        found = {name: (path, _seen(path)) for name, path in self._files().items()}
        return {name: (path, of) for name, (path, of) in found.items() if of is not None and self._sent.get(name) != of}

    def _send_checkpoint(self, name: str, path: Path) -> None:
        base = f"{CHECKPOINTS}/{name}"
        with _linked(path, self._folder / _LINKS) as files:
            manifest = files.pop(MANIFEST, None)
            seen = _seen(manifest) if manifest else None
            if manifest is None or seen is None:
                return  # removed meanwhile
            self._confirm()
            if f"{base}/{MANIFEST}" in self._there:  # another checkpoint of this step
                self._remove([f"{base}/{MANIFEST}"])
            for each, file in files.items():
                self._there.add(f"{base}/{each}")
                self._bucket.upload(file, f"{base}/{each}")
                self._progressed()
            self._send_files()  # a resumed run continues the metrics
            stored = self._bucket.objects(base)
            for each, file in files.items():
                found = stored.get(f"{base}/{each}")
                if found is None or found.bytes != file.stat().st_size:
                    raise StorageError(f"`{base}/{each}` isn't there as it was sent")
            self._confirm()
            self._there.add(f"{base}/{MANIFEST}")
            self._bucket.upload(manifest, f"{base}/{MANIFEST}")
            self._whole[name] = seen

    def _send_files(self) -> None:
        for name, (path, seen) in self._new_files().items():
            try:
                if seen[2] > _MOST_READ:
                    self._bucket.upload(path, name)
                else:
                    self._bucket.write(name, _content(path))
            except FileNotFoundError:
                continue  # removed meanwhile
            self._sent[name] = seen
            self._there.add(name)
            self._progressed()
        gone = self._sent.keys() - self._files().keys()
        self._remove(sorted(gone))
        for name in gone:
            del self._sent[name]

    def _remove_old(self) -> None:
        """Removes checkpoints that retention has removed here; those that are newer than all of ours stay."""
        here, newest = self._checkpoints(), max(map(_step, self._whole), default=0)
        old = dict[str, list[str]]()
        for each in self._there:
            path = Path(each)
            if len(path.parts) == 3 and path.parts[0] == CHECKPOINTS and step_of_name(path.parent) is not None:
                old.setdefault(path.parent.name, []).append(each)
        for name, names in old.items():
            if name not in here and _step(name) < newest:
                self._confirm()
                self._remove(sorted(names, key=lambda each: (not each.endswith(f"/{MANIFEST}"), each)))
                self._whole.pop(name, None)

    def _remove(self, names: list[str]) -> None:
        self._bucket.remove(names)
        self._there -= set(names)


def _step(name: str) -> int:
    return step_of_name(Path(name)) or 0


def _seen(path: Path) -> Seen | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _content(path: Path) -> bytes:
    """Returns a file's content; of a file of lines that grows, whole lines only."""
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1] if path.suffix == ".jsonl" else content


@contextlib.contextmanager
def _linked(path: Path, links: Path) -> Iterator[dict[str, Path]]:
    """Yields the files of a checkpoint by name, which stay readable even if retention removes the checkpoint."""
    shutil.rmtree(links, ignore_errors=True)
    found = dict[str, Path]()
    try:
        links.mkdir()
        for file in sorted(path.iterdir()):
            found[file.name] = links / file.name
            try:
                os.link(file, links / file.name)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without links
                found[file.name] = file
    except FileNotFoundError:  # removed meanwhile
        found = {}
    try:
        yield found
    finally:
        shutil.rmtree(links, ignore_errors=True)
