"""Writes a token file, and resumes with the same result if the process is killed.

An unfinished file is a folder, `NAME.partial`, with the tokens and the progress so far.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from core.data.token_files import HEADER_SIZE, Header, token_dtype
from core.data.tokenizers import Numbers, Tokenizer
from core.disk import space_for, write_whole
from core.errors import ConfigurationError

_PROGRESS = "progress.json"


@dataclasses.dataclass
class Place:
    """The progress in tokenizing text files: `offset` bytes of file `file`. `inside` says that a document continues."""

    file: int = 0
    offset: int = 0
    inside: bool = False
    text_bytes: int = 0  # tokenized so far
    tokens: int = 0
    documents: int = 0


class TokenWriter:
    """Appends tokens to the unfinished token file `path`; `place` is the progress so far."""

    def __init__(self, path: Path, folder: Path, tokenizer: Tokenizer, place: Place, plan: Mapping[str, str]) -> None:
        self.path, self.folder, self.tokenizer, self.place, self._plan = path, folder, tokenizer, place, dict(plan)
        self._dtype = token_dtype(tokenizer.vocabulary)
        self._tokens = _open_behind(folder / "tokens", place.tokens * self._dtype.itemsize)

    def append(self, tokens: Numbers, *, begins_document: bool) -> None:
        """Appends tokens, and counts them in `place`."""
        self._tokens.write(tokens.astype(self._dtype).tobytes())
        self.place.tokens += len(tokens)
        self.place.documents += begins_document

    def save(self) -> None:
        """Writes the tokens so far and `place` to the disk, so that they survive a crash."""
        self._tokens.flush()
        os.fsync(self._tokens.fileno())
        progress = json.dumps({"plan": self._plan, "place": dataclasses.asdict(self.place)})
        write_whole({self.folder / _PROGRESS: progress.encode()})

    def finish(self) -> None:
        """Writes the header, moves the complete file to `path`, and removes the folder."""
        self.save()
        self._tokens.seek(0)
        tokenizer, place = self.tokenizer, self.place
        header = Header(tokenizer.vocabulary, tokenizer.end, tokenizer.identity, place.tokens, place.documents)
        self._tokens.write(header.packed())
        self._tokens.flush()
        os.fsync(self._tokens.fileno())
        os.replace(self.folder / "tokens", self.path)
        _remove(self.folder)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was reported before
            self._tokens.close()


def partial_folder(path: Path) -> Path:
    """Returns the folder in which `path` is written until it is complete: `NAME.partial`."""
    return path.with_name(f"{path.name}.partial")


@contextlib.contextmanager
def token_writer(path: Path, tokenizer: Tokenizer, *, plan: Mapping[str, str]) -> Iterator[TokenWriter]:
    """Opens a writer of `path`. An unfinished file with an equal `plan` is resumed: the plan determines the tokens."""
    folder = partial_folder(path)
    with _locked(path, folder):
        writer = TokenWriter(path, folder, tokenizer, _place(folder, plan), plan)
        try:
            yield writer
        finally:
            writer.close()


def finished(path: Path, *, plan: Mapping[str, str]) -> Place | None:
    """Returns the final progress if a run was killed after moving the complete file to `path`; else `None`.

    It removes that run's folder. If `path` exists for another reason or plan, it raises a `ConfigurationError`.
    """
    folder = partial_folder(path)
    if not path.exists():
        return None
    with _locked(path, folder):
        saved = _saved(folder)
        if saved is None or _differing(saved[1], plan) or (folder / "tokens").exists():
            raise there_already(path)
        _remove(folder)
        return saved[0]


def there_already(path: Path) -> ConfigurationError:
    """Returns the error to raise if the output file already exists."""
    return ConfigurationError(f"`--out` is '{path}', which exists: name another, or remove it to make it anew.")


@contextlib.contextmanager
def _locked(path: Path, folder: Path) -> Iterator[None]:
    """Locks `path` in its `with` block. If another process is writing `path`, it raises an error."""
    with space_for(path), contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):  # another process has the lock, or removes the folder
            raise ConfigurationError(f"{path} is being made by another process: wait for it, or stop it.") from None
        if path.exists() and not (folder / _PROGRESS).exists():  # made meanwhile, or before a kill between two removals
            _remove(folder)
            raise there_already(path)
        yield


def _remove(folder: Path) -> None:
    """Removes the folder of a complete file. Removes the progress last, so that it can be read after a kill."""
    for file in sorted(folder.iterdir(), key=lambda file: file.name == _PROGRESS):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another process has entered it; that finds `path`, and removes the folder
        folder.rmdir()


def _place(folder: Path, plan: Mapping[str, str]) -> Place:
    """Returns the progress saved in `folder`, or a new one. A saved plan other than `plan` raises an error."""
    saved = _saved(folder)
    if saved is None:
        return Place()
    place, begun = saved
    if other := _differing(begun, plan):
        raise ConfigurationError(
            f"{folder} was begun with another {' and '.join(other)}: give the same, or {_anew(folder)}"
        )
    return place


def _saved(folder: Path) -> tuple[Place, Mapping[str, str]] | None:
    """Returns the progress and the plan saved in `folder`; `None` if nothing is saved."""
    try:
        saved: dict[str, Any] = json.loads((folder / _PROGRESS).read_text())
        return Place(**saved["place"]), dict(saved["plan"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{folder / _PROGRESS} can't be read ({error}): {_anew(folder)}") from error


def _differing(begun: Mapping[str, str], plan: Mapping[str, str]) -> list[str]:
    return [name for name, value in plan.items() if begun.get(name) != value]


def _anew(folder: Path) -> str:
    return f"remove the folder {folder} to begin anew."


def _open_behind(path: Path, size: int) -> BinaryIO:
    """Opens the file of tokens, truncates it to the header and `size` bytes, and seeks to its end."""
    file = path.open("r+b" if path.exists() else "w+b")
    if size and os.fstat(file.fileno()).st_size < HEADER_SIZE + size:
        raise ConfigurationError(f"{path} is shorter than was saved: remove the folder {path.parent} to begin anew.")
    file.truncate(HEADER_SIZE + size)
    file.seek(HEADER_SIZE + size)
    return file
