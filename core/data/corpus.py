"""Reads text files in pieces, so that a document may be larger than memory.

A file is one document, or several with a `separator` between them. Pieces are cut at the same places if reading resumes
in the middle of a document. So the tokens are the same as without an interruption.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import gin
import numpy as np
from absl import logging

from core.arguments import listed
from core.data.files import list_matches, open_file, path_of
from core.data.token_files import token_dtype
from core.data.token_windows import TokenWindows
from core.data.tokenizers import ByteTokenizer, Numbers, Tokenizer
from core.errors import ConfigurationError, DataError
from core.machine import machine_memory

PIECE = 1 << 20  # bytes
_READ_AHEAD = 4  # pieces; the rest of earlier ones is copied each time


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some bytes of a document. The next piece begins at byte `next_offset` of the file."""

    text: bytes
    begins_document: bool
    ends_document: bool
    next_offset: int

    def tokens(self, tokenizer: Tokenizer) -> Numbers:
        """Returns the tokens of these bytes, plus the end token if the document ends here."""
        tokens = tokenizer.encode_whole(self.text)
        return np.append(tokens, np.int32(tokenizer.end)) if self.ends_document else tokens


def pieces(file: BinaryIO, *, separator: bytes | None = None, offset: int = 0, inside: bool = False) -> Iterator[Piece]:
    """Yields the documents of `file`, from byte `offset` on, in pieces of at most `PIECE` bytes.

    A piece ends after a line, if possible. `inside` says that `offset` is within a document. Empty documents are
    skipped.
    """
    file.seek(offset)
    gap = len(separator or b"")
    need = PIECE + max(gap, 1)  # so that a separator that begins within a piece is seen whole
    buffer, at, at_end = b"", 0, False
    while not at_end or at < len(buffer) or inside:
        while not at_end and len(buffer) - at < need:
            read = file.read(_READ_AHEAD * need)
            buffer, at, at_end = buffer[at:] + read, 0, not read
        separated = buffer.find(separator, at, at + need) if separator else -1
        ends = separated >= 0 or len(buffer) - at <= PIECE
        stop = separated if separated >= 0 else len(buffer) if ends else _cut(buffer, at)
        text, skipped = buffer[at:stop], stop - at + (gap if separated >= 0 else 0)
        at, offset = at + skipped, offset + skipped
        if text or inside:
            yield Piece(text, not inside, ends, offset)
        inside = not ends


def _cut(buffer: bytes, at: int) -> int:
    """Returns where to cut a long text in `buffer`: after a line, or else between two letters."""
    behind_line = buffer.rfind(b"\n", at, at + PIECE) + 1
    if behind_line:
        return behind_line
    return next((stop for stop in range(at + PIECE, at + PIECE - 4, -1) if buffer[stop] & 0xC0 != 0x80), at + PIECE)


def list_texts(*patterns: str) -> list[Path]:
    """Lists the text files that `patterns` name: a file, a folder with its subfolders, or a glob.

    Hidden files are skipped, and links followed. A file with several names is listed once, under its first name.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        for path in sorted(_named(pattern)):
            found.setdefault(os.path.realpath(path), path)
    return [*found.values()]


def _named(pattern: str) -> list[Path]:
    path = path_of(pattern, "text_files.files", "'books/*.txt' for several files")
    found = _below(path) if path.is_dir() else list_matches("text_files.files", pattern)
    if not found:
        raise DataError(f"{path} names no file of text; give a file, a folder, or a pattern such as 'books/**/*.txt'.")
    return found


def _below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} can't be read: {error.strerror}; give a folder of text.") from error

    found, seen = [], {os.path.realpath(folder)}  # a link may lead back
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        candidates, folders[:] = sorted(folders), []
        for name in candidates:
            place = os.path.realpath(Path(parent, name))
            if not name.startswith(".") and place not in seen:
                seen.add(place)
                folders.append(name)
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return found


def open_text(path: Path) -> BinaryIO:
    """Opens a text file; raises a `DataError` unless it is a regular file that can be read."""
    try:
        return open_file(path)
    except OSError as error:
        raise DataError(
            f"{path} can't be read: {error.strerror}; check what it is and who may read it, or leave it out."
        ) from error


@dataclasses.dataclass(frozen=True)
class Text:
    """The size and modification time of a text file when the run first looked at it."""

    path: Path
    size: int  # bytes
    modified: int  # nanoseconds

    def check_unchanged(self, file: BinaryIO) -> None:
        """Raises a `DataError` if `file`, read to its end, no longer has this size and modification time."""
        now = os.fstat(file.fileno())
        if (file.tell(), now.st_size, now.st_mtime_ns) != (self.size, self.size, self.modified):
            raise DataError(
                f"{self.path} has changed since it was first looked at: it had {self.size:,} bytes, and now "
                f"{now.st_size:,}; leave it as it is until its tokens are written."
            )


def look_at(path: Path) -> Text:
    """Returns a text file's current size and modification time."""
    with open_text(path) as file:
        state = os.fstat(file.fileno())
    return Text(path, state.st_size, state.st_mtime_ns)


def separator_of(text: str | None) -> bytes | None:
    """Converts a separator from the command line to bytes, which needn't be UTF-8."""
    if text == "":
        raise ConfigurationError("`separator` is '', which stands everywhere: give some text, or leave it out.")
    return None if text is None else text.encode("utf-8", "surrogateescape")


def warn_of_empty(texts: Iterable[Text]) -> None:
    """Logs a warning for each empty file."""
    for text in texts:
        if not text.size:
            logging.warning("%s is empty and left out", text.path)


@gin.configurable
def text_files(
    files: str, length: int, *, tokenizer: Tokenizer | None = None, separator: str | None = None
) -> TokenWindows:
    """Reads windows of `length` targets from text files: a file, a folder, or a pattern with `*` and `**`.

    A file is one document, or several with a `separator` between them. All files are tokenized when the run starts.
    """
    tokenizer = tokenizer or ByteTokenizer()
    between = separator_of(separator)
    texts = [look_at(path) for path in list_texts(files)]
    total, memory = sum(text.size for text in texts), machine_memory()
    if 4 * total > memory:  # two bytes per token, and temporary memory
        raise DataError(
            f"`text_files.files` names {total:,} bytes of text, which is turned into tokens within the {memory:,} of "
            "this machine's memory: write them to a file once, with `python -m trainers.tokenize`, and read it with "
            "`token_file`."
        )
    warn_of_empty(texts)
    dtype = token_dtype(tokenizer.vocabulary)
    parts = [np.empty(0, dtype)]
    for text in texts:
        with open_text(text.path) as file:
            for piece in pieces(file, separator=between):
                parts.append(piece.tokens(tokenizer).astype(dtype))
    place = listed((str(text.path) for text in texts), most=3, quote="")
    return TokenWindows(np.concatenate(parts), length=length, tokenizer=tokenizer, name="text_files", place=place)
