"""Token files, made with `python -m trainers.tokenize`; they are memory-mapped, so they may exceed memory.

A file is a header of 128 bytes, then the tokens; all numbers are little-endian. Each document ends with an end token.
This is the header:

| bytes | what |
| --- | --- |
| 0 to 15 | `TAPELOOP TOKENS` and a line feed |
| 16 to 19 | the version of the format: 1 |
| 20 to 23 | bytes a token: 2 (uint16) or 4 (uint32) |
| 24 to 55 | four of 8 bytes: vocabulary, end token, number of tokens, number of documents |
| 56 to 119 | the tokenizer's identity, in ASCII, padded with zeros |
| 120 to 127 | zeros |
"""

import dataclasses
import os
import struct
from pathlib import Path
from typing import Any

import gin
import numpy as np

from core.data.files import path_of, reading
from core.data.token_windows import Tokens, TokenWindows
from core.data.tokenizers import ByteTokenizer, Tokenizer
from core.errors import DataError, shown

HEADER_SIZE = 128
_HEADER = struct.Struct("<16sIIQQQQ64s8x")
_MAGIC = b"TAPELOOP TOKENS\n"
_VERSION = 1
_MAKE = "make it again with `python -m trainers.tokenize`"


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """Returns the dtype that can hold all tokens of a vocabulary: uint16, or uint32 if that is too narrow."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


@dataclasses.dataclass(frozen=True)
class Header:
    """The contents of a token file's header."""

    vocabulary: int
    end: int
    identity: str  # of the tokenizer
    count: int  # of tokens
    documents: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of the stored tokens."""
        return token_dtype(self.vocabulary)

    def packed(self) -> bytes:
        numbers = (self.vocabulary, self.end, self.count, self.documents)
        return _HEADER.pack(_MAGIC, _VERSION, self.dtype.itemsize, *numbers, self.identity.encode())


@dataclasses.dataclass(frozen=True)
class TokenFile:
    """A token file: its header, and its memory-mapped tokens."""

    header: Header
    tokens: Tokens


def read_token_file(path: Path) -> TokenFile:
    """Maps a token file into memory, and reads only its header. A wrong size or header raises a `DataError`."""
    with reading(path) as file:
        header = _read_header(path, file.read(HEADER_SIZE), os.fstat(file.fileno()).st_size)
        return TokenFile(header, np.memmap(file, header.dtype, "r", HEADER_SIZE, header.count))


def _read_header(path: Path, content: bytes, held: int) -> Header:
    if not content.startswith(_MAGIC):
        raise DataError(
            f"{path} isn't a token file: it begins with {shown(content[:16])}; give one that `python -m "
            "trainers.tokenize` made, or read text with `text_files`."
        )
    if len(content) < HEADER_SIZE:
        raise DataError(f"{path} is cut short: {held} bytes, less than its header of {HEADER_SIZE}; {_MAKE}.")
    _, version, width, vocabulary, end, count, documents, identity = _HEADER.unpack(content)
    if version != _VERSION:
        raise DataError(f"{path} is of version {version} of the format, and {_VERSION} is read; {_MAKE}.")
    header = Header(vocabulary, end, identity.rstrip(b"\0").decode("ascii", "backslashreplace"), count, documents)
    if not end < vocabulary <= 1 << 31 or width != header.dtype.itemsize or not 1 <= documents <= count:
        raise DataError(
            f"The header of {path} contradicts itself: vocabulary {vocabulary}, end token {end}, {width} bytes each, "
            f"{count} tokens, {documents} documents; {_MAKE}."
        )
    expected = HEADER_SIZE + count * width
    if held != expected:
        state = "cut short" if held < expected else "damaged"
        raise DataError(
            f"{path} is {state}: {count:,} tokens, as it says that it holds, take {expected:,} bytes, but it has "
            f"{held:,}; {_MAKE}."
        )
    return header


@gin.configurable
def token_file(path: str, length: int, *, tokenizer: Tokenizer | None = None) -> TokenWindows:
    """Reads windows of `length` targets from a token file that `tokenizer` (default: the byte tokenizer) made."""
    place, tokenizer = path_of(path, "token_file.path"), tokenizer or ByteTokenizer()
    file = read_token_file(place)
    made_by, given = file.header.identity, tokenizer.identity
    if made_by != given:
        raise DataError(
            f"{place} was made by the tokenizer {_short(made_by)}, but `token_file.tokenizer` is {_short(given)}: bind "
            "the one that made it (`@bpe()` with its file as `bpe.path`, or `@byte_tokens()`), or make the file again."
        )
    if (file.header.vocabulary, file.header.end) != (tokenizer.vocabulary, tokenizer.end):
        raise DataError(
            f"The header of {place} says vocabulary {file.header.vocabulary} and end token {file.header.end}, but its "
            f"tokenizer has {tokenizer.vocabulary} and {tokenizer.end}: it is damaged; {_MAKE}."
        )
    return TokenWindows(file.tokens, length=length, tokenizer=tokenizer, name="token_file", place=str(place))


def _short(identity: str) -> str:
    """Returns the beginning of a tokenizer's identity, enough to recognise it in an error."""
    return shown(identity[:16])
