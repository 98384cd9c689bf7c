"""A file of tokens in the making: what is saved outlives a kill, and the same file comes of it.

Until it is whole it is a folder beside its place, `NAME.partial`: the tokens, and how far it got.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from core.data.token_files import HEADER_SIZE, Header, token_dtype
from core.data.tokenizers import Numbers, Tokenizer
from core.disk import space_for, write_whole
from core.errors import ConfigurationError


@dataclasses.dataclass
class Place:
    """How far the texts are read: `offset` bytes of file number `file`, which may be `inside` a document."""

    file: int = 0
    offset: int = 0
    inside: bool = False
    text_bytes: int = 0  # that became tokens so far
    tokens: int = 0
    documents: int = 0


class TokenWriter:
    """Appends tokens to what will be the file `path`, from `place` on."""

    def __init__(self, path: Path, folder: Path, tokenizer: Tokenizer, place: Place, plan: Mapping[str, str]) -> None:
        self.path, self.folder, self.tokenizer, self.place, self._plan = path, folder, tokenizer, place, dict(plan)
        self._dtype = token_dtype(tokenizer.vocabulary)
        self._tokens = _open_behind(folder / "tokens", place.tokens * self._dtype.itemsize)

    def append(self, tokens: Numbers, *, begins_document: bool) -> None:
        """Writes tokens behind those from before."""
        self._tokens.write(tokens.astype(self._dtype).tobytes())
        self.place.tokens += len(tokens)
        self.place.documents += begins_document

    def save(self) -> None:
        """Makes what was written so far, and `place`, outlive whatever happens next."""
        self._tokens.flush()
        os.fsync(self._tokens.fileno())
        progress = json.dumps({"plan": self._plan, "place": dataclasses.asdict(self.place)})
        write_whole({self.folder / "progress.json": progress.encode()})

    def finish(self) -> None:
        """Puts the whole file into its place, and takes the folder away."""
        self.save()
        self._tokens.seek(0)
        tokenizer, place = self.tokenizer, self.place
        header = Header(tokenizer.vocabulary, tokenizer.end, tokenizer.identity, place.tokens, place.documents)
        self._tokens.write(header.packed())
        self._tokens.flush()
        os.fsync(self._tokens.fileno())
        os.replace(self.folder / "tokens", self.path)
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets go of the file."""
        with contextlib.suppress(OSError):  # what a full disk didn't take was said before
            self._tokens.close()


def partial_folder(path: Path) -> Path:
    """Returns where the file `path` is kept until it is whole."""
    return path.with_name(f"{path.name}.partial")


@contextlib.contextmanager
def token_writer(path: Path, tokenizer: Tokenizer, *, plan: Mapping[str, str]) -> Iterator[TokenWriter]:
    """Begins the file `path`, or goes on with it where it was begun by the same `plan`: what its tokens are made of."""
    folder = partial_folder(path)
    with space_for(path):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(f"{path} is being made by another process: wait for it, or stop it.") from None
            writer = TokenWriter(path, folder, tokenizer, _place(folder, plan), plan)
            try:
                yield writer
            finally:
                writer.close()


def _place(folder: Path, plan: Mapping[str, str]) -> Place:
    """Returns how far an interrupted run by the same plan got."""
    anew = f"remove the folder {folder} to begin anew."
    try:
        saved: dict[str, Any] = json.loads((folder / "progress.json").read_text())
        place, begun = Place(**saved["place"]), saved["plan"]
    except FileNotFoundError:
        return Place()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{folder / 'progress.json'} can't be read ({error}): {anew}") from error
    other = [name for name, value in plan.items() if begun.get(name) != value]
    if other:
        raise ConfigurationError(f"{folder} was begun with another {' and '.join(other)}: give the same, or {anew}")
    return place


def _open_behind(path: Path, size: int) -> BinaryIO:
    """Opens a file behind room for a header and `size` bytes of tokens; takes away what follows them."""
    file = path.open("r+b" if path.exists() else "w+b")
    if size and os.fstat(file.fileno()).st_size < HEADER_SIZE + size:
        raise ConfigurationError(f"{path} is shorter than was saved: remove the folder {path.parent} to begin anew.")
    file.truncate(HEADER_SIZE + size)
    file.seek(HEADER_SIZE + size)
    return file
