"""`python -m trainers.tokenize` and its texts: their names, separators, and changes during a run."""

import os
import re
import subprocess
import sys

import pytest

from core.data import corpus
from core.data.token_files import read_token_file
from core.data.token_writer import TokenWriter
from tests.commands import CHECKOUT, environment
from trainers.tokenize import main, parse

WORDS = ["--files=texts", "--out=x.tokens"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    for name, text in {"a.txt": b"one\ntwo\n", "deep/b.txt": b"three--four", "c.txt": b"\xff\x00five"}.items():
        (tmp_path / "texts" / name).write_bytes(text)
    return tmp_path


def test_file_with_two_names_is_read_once_and_outputs_never(folder, monkeypatch, capfd):
    (folder / "link").symlink_to("texts")
    assert main([*WORDS, "--files=texts/../texts", "--files=link/deep"]) == 0
    assert "3 files, 3 documents" in capfd.readouterr().out
    (folder / "x.tokens").unlink()
    learns = ["--files=texts", "--out=link/x.tokens", "--bpe=texts/../texts/b.json", "--train_bpe=258"]
    with monkeypatch.context() as patch:
        patch.setattr(TokenWriter, "finish", lambda self: self.save())
        assert main(learns) == 0
    capfd.readouterr()
    assert main(learns) == 0  # its own output is stored among its texts, and isn't one
    assert re.search("(?s)resuming after.*3 files", capfd.readouterr().out)


def test_separator_may_be_bytes_that_are_no_text(folder):
    assert main(["--files=texts/c.txt", "--out=x.tokens", "--separator=\udcff"]) == 0
    assert read_token_file(folder / "x.tokens").tokens.tolist() == [*b"\x00five", 256]


def test_separator_may_be_an_empty_line(folder):
    (folder / "texts" / "c.txt").write_bytes(b"one\n\ntwo")
    assert main(["--files=texts/c.txt", "--out=x.tokens", "--separator=\n\n"]) == 0
    assert read_token_file(folder / "x.tokens").tokens.tolist() == [*b"one", 256, *b"two", 256]


def test_text_that_changes_meanwhile_is_named(folder, monkeypatch, capfd):
    original = TokenWriter.append

    def append(self, *arguments, **kwargs):
        original(self, *arguments, **kwargs)
        (folder / "texts" / "a.txt").open("ab").write(b"more")

    monkeypatch.setattr(TokenWriter, "append", append)
    monkeypatch.setattr(corpus, "PIECE", 4)
    monkeypatch.setattr(corpus, "_READ_AHEAD", 1)
    assert main(WORDS) == 4
    assert "a.txt has changed since it was first looked at: it had 8 bytes, and now 16" in capfd.readouterr().err


def test_text_that_is_rewritten_with_as_many_bytes_is_noticed(folder, monkeypatch, capfd):
    original, path = TokenWriter.append, folder / "texts" / "a.txt"
    modified = path.stat().st_mtime_ns

    def append(self, *arguments, **kwargs):
        original(self, *arguments, **kwargs)
        path.write_bytes(b"ONE\nTWO\n")
        os.utime(path, ns=(modified + 1, modified + 1))

    monkeypatch.setattr(TokenWriter, "append", append)
    monkeypatch.setattr(corpus, "PIECE", 4)
    assert main(WORDS) == 4
    assert re.search("^error: .*a.txt has changed since it was first looked at", capfd.readouterr().err)


@pytest.mark.long
def test_names_are_utf8_in_any_locale(tmp_path):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "né").mkdir()
    (tmp_path / "né" / "é.txt").write_bytes(b"text")
    names = ["--files=né", "--out=né.tokens", "--bpe=né.json", "--train_bpe=258"]
    (tmp_path / "flags").write_text("\n".join(names), "utf-8")
    (tmp_path / "both.py").write_text(
        "import runpy, sys\n"
        "from core.data import bpe, text_files, token_file\n"
        "try:\n    runpy.run_module('trainers.tokenize', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert len(token_file('né.tokens', 2, tokenizer=bpe('né.json'))) == len(text_files('né/*.txt', 2))\n",
        "utf-8",
    )
    env = {**environment(), **ascii_only, "PYTHONPATH": f"{environment()['PYTHONPATH']}:{CHECKOUT}"}
    words = [sys.executable, "both.py", "--flagfile=flags"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(read_token_file(tmp_path / "né.tokens").tokens) == 5


def test_arguments_are_utf8_in_any_locale(monkeypatch):
    monkeypatch.setattr(os, "fsencode", lambda word: word.encode("latin-1"))
    assert parse(["--files=né".encode().decode("latin-1"), "--out=x"]).files == ["né"]
