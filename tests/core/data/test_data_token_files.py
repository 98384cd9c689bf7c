"""Token files: memory-mapped, and refused if they don't match their description."""

import contextlib
import os
import struct

import numpy as np
import pytest
from data_lab import everything

from core.data import byte_tokens, token_file
from core.data.token_files import HEADER_SIZE, Header, token_dtype
from core.errors import DataError

TEXTS = [b"first", b"", b"the third document"]


def content(texts=TEXTS, *, vocabulary=257, identity="bytes", end=256):
    tokens = [token for text in texts for token in (*text, end)]
    header = Header(vocabulary, end, identity, len(tokens), len(texts))
    return header.packed() + np.array(tokens, header.dtype).tobytes()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.tokens"
    path.write_bytes(content())
    return path


def test_the_format_is_the_documented_one(path):
    raw = path.read_bytes()
    assert raw[:16] == b"TAPELOOP TOKENS\n"
    assert struct.unpack("<IIQQQQ", raw[16:56]) == (1, 2, 257, 256, 26, 3)
    assert raw[56:120] == b"bytes".ljust(64, b"\0")
    assert raw[120:128] == bytes(8)
    assert np.frombuffer(raw[128:], "<u2").tolist() == [*b"first", 256, 256, *b"the third document", 256]
    assert [token_dtype(2**16), token_dtype(2**16 + 1)] == [np.dtype("<u2"), np.dtype("<u4")]


def test_windows_of_a_file_are_those_of_its_tokens(path):
    source = token_file(str(path), 7)
    assert len(source) == 4
    found = everything(source)
    np.testing.assert_array_equal(found["tokens"][0], [*b"first", 256, 256, ord("t")])
    np.testing.assert_array_equal(found["document"][0], [0, 0, 0, 0, 0, 0, 1, 2])
    assert source.tokenizer.identity == "bytes"


def test_the_tokens_stay_in_the_file(path):
    """4 TiB of zeros, a sparse file: opened at once, and read at both ends."""
    header = Header(257, 256, "bytes", 2**41, 1)
    with path.open("wb") as file:
        file.write(header.packed())
        file.truncate(HEADER_SIZE + 2 * 2**41)
    source = token_file(str(path), 1023)
    assert len(source) == -(-(2**41 - 1) // 1023)
    assert source.gather(np.array([0, len(source) - 2]))["tokens"].numpy().sum() == 0


def refused(path, says, length=7, **kwargs):
    with pytest.raises(DataError, match=says) as error:
        token_file(str(path), length, **kwargs)
    assert error.value.exit_code == 4
    assert path.name in str(error.value)


@pytest.mark.parametrize("size", [0, 10, 127, 128, 150, 179])
def test_a_file_cut_short_is_refused(path, size):
    os.truncate(path, size)
    refused(path, "cut short" if size >= 16 else "a token file")


def test_a_file_that_is_too_long_is_refused(path):
    path.write_bytes(content() + b"x")
    refused(path, "damaged: 26 tokens, as it says that it holds, take 180 bytes, but it has 181")


def test_a_file_of_another_tokenizer_is_refused(path):
    path.write_bytes(content(identity="ab" * 32))
    refused(path, "made by the tokenizer 'abababababababab', but `token_file.tokenizer` is 'bytes'")
    path.write_bytes(content(vocabulary=300))
    refused(path, "vocabulary 300 and end token 256, but its tokenizer has 257 and 256")


def test_a_file_shorter_than_a_window_is_refused(path):
    assert len(token_file(str(path), 25)) == 1
    refused(path, r"holds 26 tokens, but a window of `length` 26 takes 27", length=26)
    path.write_bytes(Header(257, 256, "bytes", 0, 0).packed())
    refused(path, "contradicts itself")


def test_a_token_beyond_the_vocabulary_is_refused_where_it_is_read(path):
    raw = bytearray(content())
    raw[HEADER_SIZE + 2 * 20 : HEADER_SIZE + 2 * 21] = struct.pack("<H", 999)
    path.write_bytes(raw)
    source = token_file(str(path), 7)
    source.gather(np.array([0, 1]))
    with pytest.raises(DataError, match=rf"{path} holds the token 999 at position 20, but .* 0 to 256"):
        source.gather(np.array([0, 2]))


@pytest.mark.parametrize(
    ("offset", "value"),
    [(16, 2), (20, 4), (20, 0), (24, 0), (24, 2**64 - 1), (32, 257), (40, 2**64 - 1), (40, 2**63), (48, 27), (48, 0)],
)
def test_headers_that_claim_what_can_not_be_are_refused_before_anything_is_made(path, offset, value):
    raw = bytearray(content())
    raw[offset : offset + (4 if offset < 24 else 8)] = struct.pack("<I" if offset < 24 else "<Q", value)
    path.write_bytes(raw)
    refused(path, "of version 2|contradicts itself|cut short")


def test_no_mutated_file_is_more_than_refused_or_read(path, chance):
    raw, tokenizer = content(), byte_tokens()
    for _ in range(300):
        mutant = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            mutant[chance.randrange(len(mutant))] = chance.randrange(256)
        path.write_bytes(mutant[: chance.randint(0, len(mutant))] if chance.random() < 0.3 else mutant)
        with contextlib.suppress(DataError):
            everything(token_file(str(path), 7, tokenizer=tokenizer))


def test_file_without_tokens_is_refused(tmp_path):
    path = tmp_path / "x.tokens"
    refused(path, "can't be read: No such file")
    path.write_bytes(b"some text, which is no header at all" * 10)
    refused(path, "a token file: it begins with b'some text, which'")
    path.unlink()
    os.mkfifo(path)
    refused(path, "a pipe")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(path, "a device")
    path.unlink()
    path.mkdir()
    refused(path, "can't be read: Is a directory")
