"""Files of text: their selection, their documents, and the same tokens for every way of reading."""

import io
import os

import gin
import numpy as np
import pytest
from absl import logging
from data_lab import everything
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import corpus, text_files
from core.data.corpus import list_texts, pieces
from core.errors import ConfigurationError, DataError


def lay(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    return root


def documents(parts):
    """Joins pieces into documents."""
    made = []
    for piece in parts:
        if piece.begins_document:
            made.append(b"")
        made[-1] += piece.text
    return made


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"\n", b"<|", b"|>", b"<||>", "né".encode()]), max_size=30), st.integers(4, 9))
def test_separators_split_documents(letters, piece_size):
    text = b"".join(letters)
    before, corpus.PIECE = corpus.PIECE, piece_size
    try:
        parts = list(pieces(io.BytesIO(text), separator=b"<||>"))
        alone = list(pieces(io.BytesIO(text)))
        assert documents(parts) == [document for document in text.split(b"<||>") if document]
        assert documents(alone) == ([text] if text else [])
        assert sum(piece.ends_document for piece in parts) == len(documents(parts))
        assert all(len(piece.text) <= piece_size for piece in parts)
        # Resuming at any piece gives the same ones.
        for i, piece in enumerate(parts):
            rest = pieces(io.BytesIO(text), separator=b"<||>", offset=piece.next_offset, inside=not piece.ends_document)
            assert list(rest) == parts[i + 1 :]
    finally:
        corpus.PIECE = before


def test_a_long_document_is_cut_behind_a_line_or_between_letters(monkeypatch):
    monkeypatch.setattr(corpus, "PIECE", 8)
    assert [piece.text for piece in pieces(io.BytesIO(b"ab\ncd\nefgh\ni"))] == [b"ab\ncd\n", b"efgh\ni"]
    letters = [piece.text.decode() for piece in pieces(io.BytesIO("漢字漢字".encode()))]
    assert letters == ["漢字", "漢字"]


def test_files_are_found_by_name_by_folder_and_by_pattern(tmp_path):
    lay(tmp_path, {"b.txt": b"b", "a.md": b"a", "deep/er/c.txt": b"c", ".hidden": b"h", ".git/x.txt": b"g"})

    def found(pattern):
        return [os.path.relpath(path, tmp_path) for path in list_texts(str(tmp_path / pattern))]

    assert found("") == ["a.md", "b.txt", "deep/er/c.txt"]
    assert found("b.txt") == ["b.txt"]
    assert found("*.txt") == ["b.txt"]
    assert found("**/*.txt") == ["b.txt", "deep/er/c.txt"]
    lay(tmp_path, {"[odd].txt": b"o"})
    assert found("[odd].txt") == ["[odd].txt"]  # the name of a file is no pattern
    with pytest.raises(DataError, match=r"names no file of text; give a file, a folder, or a pattern"):
        found("*.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty names no file"):
        found("empty")


def test_links_are_followed_and_each_file_is_read_once(tmp_path, monkeypatch):
    lay(tmp_path, {"texts/a.txt": b"a", "texts/z/b.txt": b"b", "else/where/c.txt": b"c", "[odd]/d.txt": b"d"})
    (tmp_path / "texts" / "back").symlink_to(tmp_path / "texts")
    (tmp_path / "texts" / "else").symlink_to(tmp_path / "else")
    (tmp_path / "texts" / "y").symlink_to("z")
    (tmp_path / "texts" / "a again.txt").symlink_to("a.txt")
    (tmp_path / "else" / "back").symlink_to(tmp_path)

    def found(*patterns):
        return sorted(os.path.realpath(path) for path in list_texts(*map(str, patterns)))

    everything = [str(tmp_path / name) for name in ("[odd]/d.txt", "else/where/c.txt", "texts/a.txt", "texts/z/b.txt")]
    assert found(tmp_path / "texts") == everything
    assert found(tmp_path / "texts/*/b.txt", tmp_path / "else/../texts/y/b.txt") == everything[-1:]
    (first, second) = list_texts(str(tmp_path / "texts/z"), str(tmp_path / "texts/a*"), str(tmp_path / "texts/y"))
    assert (first, second) == (tmp_path / "texts/z/b.txt", tmp_path / "texts/a again.txt")
    monkeypatch.chdir(tmp_path / "[odd]")  # the name of the folder is no pattern either
    assert list_texts("*.txt") == [tmp_path / "[odd]" / "d.txt"]
    assert list_texts("../te*/a.txt") == [tmp_path / "[odd]/../texts/a.txt"]


def test_a_separator_is_bytes_and_some(tmp_path):
    lay(tmp_path, {"a.txt": b"one\xfftwo"})
    tokens = everything(text_files(str(tmp_path), 7, separator="\udcff"))["tokens"]
    assert tokens.tolist() == [[*b"one", 256, *b"two", 256]]
    with pytest.raises(ConfigurationError, match="`separator` is '', which stands everywhere"):
        text_files(str(tmp_path), 8, separator="")


def test_text_files_are_documents_in_the_order_of_their_names(tmp_path):
    lay(tmp_path, {"b.txt": b"second\n", "a.txt": b"first\n", "c.txt": b"one--two"})
    source = text_files(str(tmp_path), 8, separator="--")
    found = everything(source)
    real = found["document"] >= 0
    real[1:, 0] = False
    end = source.tokenizer.end
    assert found["tokens"][real].tolist() == [*b"first\n", end, *b"second\n", end, *b"one", end, *b"two", end]
    gin.parse_config(f"text_files.files = '{tmp_path}/*.txt'\ntext_files.length = 8")
    assert len(text_files()) == 3


def test_empty_files_are_named_and_left_out(tmp_path, monkeypatch):
    warned = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: warned.append(text % values))
    lay(tmp_path, {"a.txt": b"", "b.txt": b"text"})
    assert len(text_files(str(tmp_path), 4)) == 1
    assert warned == [f"{tmp_path / 'a.txt'} is empty and left out"]
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(DataError, match=r"holds 0 tokens"):
        text_files(str(tmp_path), 4)


def test_a_corpus_shorter_than_a_window_is_refused(tmp_path):
    lay(tmp_path, {"a.txt": b"abc"})
    with pytest.raises(DataError, match=r"a.txt\) holds 4 tokens, but a window of `length` 4 takes 5") as error:
        text_files(str(tmp_path), 4)
    assert error.value.exit_code == 4


@pytest.mark.parametrize(("name", "says"), [("pipe", "a pipe"), ("device", "a device"), ("gone", "No such file")])
def test_pipe_device_and_broken_link_are_refused(tmp_path, name, says):
    lay(tmp_path, {"a.txt": b"text"})
    if name == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if name == "device" else "nowhere")
    with pytest.raises(DataError, match=rf"{name} .*{says}"):
        text_files(str(tmp_path), 2)


def test_tokens_are_narrow(tmp_path):
    lay(tmp_path, {"a.txt": b"text"})
    assert text_files(str(tmp_path), 2)._full.dtype == np.uint16
