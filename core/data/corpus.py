"""Files of text, and the documents in them: read in pieces, so that a document may be larger than memory.

A file is one document, or several with a `separator` between them. What a document is cut into follows from the
document alone: its tokens are the same whether it is read at once, or after an interruption.
"""

import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import gin
import numpy as np
from absl import logging

from core.arguments import listed
from core.data import files as data_files
from core.data.files import open_file
from core.data.token_files import token_dtype
from core.data.token_windows import TokenWindows
from core.data.tokenizers import ByteTokenizer, Numbers, Tokenizer
from core.errors import DataError

PIECE = 1 << 20  # bytes
_READ_AHEAD = 4  # pieces; what is left of those before is copied each time


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some bytes of a document, and where in the file what follows them begins."""

    text: bytes
    begins_document: bool
    ends_document: bool
    next_offset: int

    def tokens(self, tokenizer: Tokenizer) -> Numbers:
        """Returns the tokens of these bytes, and the end token where the document ends."""
        tokens = tokenizer.encode_whole(self.text)
        return np.append(tokens, np.int32(tokenizer.end)) if self.ends_document else tokens


def pieces(file: BinaryIO, *, separator: bytes | None = None, offset: int = 0, inside: bool = False) -> Iterator[Piece]:
    """Yields the documents of `file` from `offset` on, cut after the last line that ends within `PIECE` bytes.

    `inside` says that what begins at `offset` goes on with a document. Documents without any text are left out.
    """
    file.seek(offset)
    gap = len(separator or b"")
    need = PIECE + max(gap, 1)  # a separator that begins within a piece is seen whole
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
    """Returns where to cut what is longer than a piece: behind a line, else not within a letter."""
    behind_line = buffer.rfind(b"\n", at, at + PIECE) + 1
    if behind_line:
        return behind_line
    return next((stop for stop in range(at + PIECE, at + PIECE - 4, -1) if buffer[stop] & 0xC0 != 0x80), at + PIECE)


def list_texts(pattern: str) -> list[Path]:
    """Lists the files that `pattern` names, sorted: one, all of a folder and those in it, or those of a glob.

    What is hidden is left out.
    """
    path = Path(pattern).expanduser()
    if path.is_dir():
        found = _below(path)
    elif path.exists():
        found = [path]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True) if not os.path.isdir(name)]
    if not found:
        raise DataError(
            f"{path.absolute()} names no file of text; give a file, a folder, or a pattern such as 'books/**/*.txt'."
        )
    return sorted(file.absolute() for file in found)


def _below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} can't be read: {error.strerror}; give a folder of text.") from error

    found = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return found


def open_text(path: Path) -> BinaryIO:
    """Opens a file of text; what is no plain file, or can't be read, is refused."""
    try:
        return open_file(path)
    except OSError as error:
        raise DataError(
            f"{path} can't be read: {error.strerror}; check what it is and who may read it, or leave it out."
        ) from error


def text_size(path: Path) -> int:
    """Returns the bytes of a file of text."""
    with open_text(path) as file:
        return os.fstat(file.fileno()).st_size


def warn_of_empty(paths: Iterable[Path]) -> None:
    """Names files that hold nothing."""
    for path in paths:
        logging.warning("%s is empty and left out", path)


@gin.configurable
def text_files(
    files: str, length: int, *, tokenizer: Tokenizer | None = None, separator: str | None = None
) -> TokenWindows:
    """Reads windows of `length` targets from files of text: one, those of a folder, or of a pattern with `*` and `**`.

    A file is one document, or several between which `separator` stands. All is turned into tokens as the run begins.
    """
    tokenizer = tokenizer or ByteTokenizer()
    sizes = {path: text_size(path) for path in list_texts(files)}
    total, memory = sum(sizes.values()), data_files.machine_memory()
    if 4 * total > memory:  # two bytes a token, and what is made on the way
        raise DataError(
            f"`text_files.files` names {total:,} bytes of text, which is turned into tokens within the {memory:,} of "
            "this machine's memory: write them to a file once, with `python -m trainers.tokenize`, and read it with "
            "`token_file`."
        )
    warn_of_empty(path for path, size in sizes.items() if not size)
    dtype = token_dtype(tokenizer.vocabulary)
    parts = [np.empty(0, dtype)]
    for path in sizes:
        with open_text(path) as file:
            for piece in pieces(file, separator=separator.encode() if separator else None):
                parts.append(piece.tokens(tokenizer).astype(dtype))
    place = listed(map(str, sizes), most=3, quote="")
    return TokenWindows(np.concatenate(parts), length=length, tokenizer=tokenizer, name="text_files", place=place)
