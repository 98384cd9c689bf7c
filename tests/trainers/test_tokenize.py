"""`python -m trainers.tokenize`: its output, its messages, and resuming after any interruption."""

import fcntl
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest

from core.data import bpe, byte_tokens, corpus, token_file
from core.data.token_files import read_token_file
from core.data.token_writer import TokenWriter, token_writer
from core.errors import ConfigurationError
from tests.commands import fork_server
from trainers import tokenize
from trainers.process.signals import Preemption
from trainers.tokenize import main

TEXTS = {"a.txt": b"one\ntwo\nthree\n", "b.txt": b"", "deep/c.txt": b"four--five\nsix----", "d.txt": b"\xff\x00seven"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_bytes(text)
    return tmp_path


WORDS = ["--files=texts", "--out=x.tokens", "--separator=--"]


def refused(capfd, words, code, *says):
    assert main(words) == code
    error = capfd.readouterr().err
    (line,) = [line for line in error.splitlines() if not re.match(r"W\d+ .* is empty and left out$", line)]
    assert line.startswith("error: ")
    for text in says:
        assert text in line, error


def test_command_writes_the_documents_of_all_files_and_their_counts(folder, capfd):
    assert main(WORDS) == 0
    file = read_token_file(folder / "x.tokens")
    documents = np.split(file.tokens, np.flatnonzero(file.tokens[:-1] == 256) + 1)
    expected = [b"one\ntwo\nthree\n", b"\xff\x00seven", b"four", b"five\nsix"]
    assert [(bytes(document[:-1].astype(np.uint8)), document[-1]) for document in documents] == [
        (text, 256) for text in expected
    ]
    text_bytes = sum(map(len, expected))
    out, err = capfd.readouterr()
    assert f"3 files, 4 documents, {text_bytes} bytes of text: {text_bytes + 4} tokens, 1.00 bytes each" in out
    assert "b.txt is empty and left out" in err
    assert sorted(os.listdir(folder)) == ["texts", "x.tokens"]
    assert len(token_file("x.tokens", 16)) == 3


def test_command_learns_byte_pairs_and_writes_by_them(folder, capfd):
    (folder / "texts" / "e.txt").write_bytes(b"the cat sat on the mat. " * 100)
    words = ["--files=texts", "--out=x.tokens", "--bpe=b.json", "--train_bpe=270"]
    assert main(words) == 0
    tokenizer = bpe("b.json")
    assert 257 < tokenizer.vocabulary <= 270
    file = read_token_file(folder / "x.tokens")
    assert file.header.identity == tokenizer.identity
    texts = (
        b"".join(TEXTS[name] for name in ("a.txt", "d.txt")) + TEXTS["deep/c.txt"] + b"the cat sat on the mat. " * 100
    )
    assert sorted(tokenizer.decode(file.tokens)) == sorted(texts)
    assert len(file.tokens) < len(texts)
    (folder / "x.tokens").unlink()
    before = (folder / "b.json").read_bytes()
    assert main(words) == 0
    assert "exists, and its byte pairs are used" in capfd.readouterr().out
    assert (folder / "b.json").read_bytes() == before


def keeping(original, keep):
    def kept(*arguments, **kwargs):
        original(*arguments, **kwargs)
        keep()

    return kept


def test_whenever_it_is_killed_the_same_command_ends_in_the_same_bytes(folder, monkeypatch, capfd):
    """Keeps the files of each moment, and resumes from them."""
    monkeypatch.setattr(corpus, "PIECE", 4)
    monkeypatch.setattr(tokenize, "SAVE_EVERY", 6)
    moments = []
    out, partial = folder / "x.tokens", folder / "x.tokens.partial"

    def keep():
        moments.append(folder / f"moment {len(moments)}")
        moments[-1].mkdir()
        if partial.exists():
            shutil.copytree(partial, moments[-1] / partial.name)
        if out.exists():
            shutil.copy(out, moments[-1])

    with monkeypatch.context() as patch:
        for owner, names in ((TokenWriter, ("append", "save")), (os, ("replace", "unlink", "rmdir"))):
            for name in names:
                patch.setattr(owner, name, keeping(getattr(owner, name), keep))
        assert main(WORDS) == 0
    whole = out.read_bytes()
    finished = [moment for moment in moments if (moment / out.name).exists()]
    assert (len(moments) - len(finished) > 12, len(finished)) == (True, 4)  # replaced, lock, progress, folder
    for i, moment in enumerate(moments):
        out.unlink(missing_ok=True)
        for path in moment.iterdir():
            shutil.move(path, folder)
        if i % 2 and (partial / "tokens").exists():  # unsaved bytes may have reached the disk, or half of them
            with (partial / "tokens").open("ab") as file:
                file.write(b"xyz")
        capfd.readouterr()
        # The last two no longer have the record of the file's texts, and nothing left to do.
        assert main(WORDS) == (2 if moment in finished[2:] else 0)
        if moment not in finished[2:]:
            assert "3 files, 4 documents" in capfd.readouterr().out
        assert out.read_bytes() == whole
        assert not partial.exists()


def test_file_of_something_else_is_not_overwritten_by_a_resumed_command(folder, monkeypatch, capfd):
    partial = interrupted(folder, monkeypatch)
    (folder / "x.tokens").write_bytes(b"mine")
    capfd.readouterr()
    refused(capfd, WORDS, 2, "`--out` is", "x.tokens', which exists")
    (partial / "tokens").unlink()
    refused(capfd, [*WORDS[:2], "--separator=-"], 2, "`--out` is", "x.tokens', which exists")
    assert (folder / "x.tokens").read_bytes() == b"mine"
    assert partial.exists()


def test_lock_that_comes_after_another_process_has_finished_replaces_nothing(folder, monkeypatch, capfd):
    flock = fcntl.flock

    def late(*arguments):
        flock(*arguments)
        (folder / "x.tokens").write_bytes(b"made by another")

    monkeypatch.setattr(fcntl, "flock", late)
    refused(capfd, WORDS, 2, "`--out` is", "x.tokens', which exists")
    assert (folder / "x.tokens").read_bytes() == b"made by another"
    assert sorted(os.listdir(folder)) == ["texts", "x.tokens"]


def test_signal_saves_and_asks_to_be_run_again(folder, monkeypatch, capfd):
    assert main(WORDS) == 0
    whole = (folder / "x.tokens").read_bytes()
    (folder / "x.tokens").unlink()
    monkeypatch.setattr(corpus, "PIECE", 4)
    original, count = TokenWriter.append, []

    def append(self, *arguments, **kwargs):
        original(self, *arguments, **kwargs)
        count.append(1)
        if len(count) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TokenWriter, "append", append)
    capfd.readouterr()
    assert main(WORDS) == 75
    assert "stopped by SIGTERM: 12 of 39 bytes are tokens, and saved. Run the same" in capfd.readouterr().err
    assert main(WORDS) == 0
    assert "resuming after 12 tokens of" in capfd.readouterr().out
    assert (folder / "x.tokens").read_bytes() == whole


def test_signal_while_byte_pairs_are_learnt_leaves_nothing(folder, monkeypatch, capfd):
    stopped = Preemption()
    stopped.signal = signal.SIGTERM
    monkeypatch.setattr(tokenize, "Preemption", lambda: stopped)
    assert main([*WORDS, "--bpe=b.json", "--train_bpe=300"]) == 75
    assert "before the byte pairs were learnt" in capfd.readouterr().err
    assert sorted(os.listdir(folder)) == ["texts"]


def interrupted(folder, monkeypatch):
    """Makes the files of a run that was interrupted."""
    with monkeypatch.context() as patch:
        patch.setattr(TokenWriter, "finish", lambda self: self.save())
        main(WORDS)
    return folder / "x.tokens.partial"


def test_other_texts_or_settings_are_refused_to_a_resumed_command(folder, monkeypatch, capfd):
    partial = interrupted(folder, monkeypatch)
    capfd.readouterr()
    (folder / "texts" / "b.txt").touch()  # it was empty, and is
    refused_words = ["--files=texts", "--out=x.tokens"]
    assert main(refused_words) == 2
    assert "was begun with another separator: give the same, or remove the folder" in capfd.readouterr().err
    (folder / "texts" / "b.txt").write_bytes(b"new")
    refused(capfd, WORDS, 2, "was begun with another set of texts", f"remove the folder {partial}")
    (partial / "progress.json").write_text("{}")
    refused(capfd, WORDS, 2, "progress.json can't be read", "remove the folder")
    shutil.rmtree(partial)
    assert main(WORDS) == 0


def test_partial_file_that_was_cut_is_refused(folder, monkeypatch, capfd):
    partial = interrupted(folder, monkeypatch)
    os.truncate(partial / "tokens", 130)
    capfd.readouterr()
    assert main(WORDS) == 2
    assert "tokens is shorter than was saved" in capfd.readouterr().err


def test_second_writer_of_a_file_is_refused(folder):
    with (
        token_writer(folder / "x.tokens", byte_tokens(), plan={}),
        pytest.raises(ConfigurationError, match=r"x.tokens is being made by another process"),
        token_writer(folder / "x.tokens", byte_tokens(), plan={}),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--out=x"], 2, ["`--files` is missing"]),
        (["--files=texts"], 2, ["`--out` is missing"]),
        ([*WORDS, "--train_bpe=300"], 2, ["`--train_bpe` has no effect without `--bpe`"]),
        ([*WORDS, "--bpe=x.json", "--train_bpe=257"], 2, ["`--train_bpe` is 257", "258 or more"]),
        ([*WORDS[:2], "--separator="], 2, ["`--separator=` has an empty value"]),
        ([*WORDS, "--file=texts"], 2, ["`--file=texts`", "Did you mean `--files`?"]),
        (["--files=none*", "--out=x"], 4, ["none* names no file of text"]),
        (["--files=texts/b.txt", "--out=x"], 4, ["`--files` names 1 texts, all of them empty"]),
        (["--files=texts/s.txt", "--out=x", "--separator=--"], 4, ["only separators"]),
        (["--files=texts/a.txt", "--out=texts"], 2, ["`--out` is '", "texts', which exists"]),
        ([*WORDS, "--bpe=x.json"], 4, ["x.json can't be read: No such file"]),
        ([*WORDS[1:], "--files=/dev/zero"], 4, ["/dev/zero is a device"]),
        (["--files=texts/a.txt", "--out=/dev/full/x"], 2, ["Not a directory"]),
    ],
)
def test_mistakes_are_one_paragraph(folder, capfd, words, code, says):
    (folder / "texts" / "s.txt").write_bytes(b"----")
    refused(capfd, words, code, *says)


def test_full_disk_is_named_and_resumed_from(folder, monkeypatch, capfd):
    assert main(WORDS) == 0
    whole = (folder / "x.tokens").read_bytes()
    (folder / "x.tokens").unlink()
    with monkeypatch.context() as patch:

        def save(self):
            raise OSError(28, "No space left on device")

        patch.setattr(TokenWriter, "save", save)
        assert main(WORDS) == 8
    assert "x.tokens` can't be written: No space left on device" in capfd.readouterr().err
    assert main(WORDS) == 0
    assert (folder / "x.tokens").read_bytes() == whole


@pytest.mark.long
def test_killed_process_resumes_to_the_same_bytes(tmp_path):
    text = b"".join(b"line %d of a long text\n" % i for i in range(2_000_000))
    (tmp_path / "long.txt").write_bytes(text)
    words, server = ("--files=long.txt", "--out=x.tokens"), fork_server()
    pid = server.begin(*words, cwd=tmp_path, stdout=os.devnull, stderr=os.devnull, command="trainers.tokenize")
    deadline = time.monotonic() + 100
    while not (tmp_path / "x.tokens.partial" / "progress.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    assert server.answer(60) == -signal.SIGKILL
    done = server.run(*words, cwd=tmp_path, timeout=200, command="trainers.tokenize")
    assert (done.returncode, done.stderr) == (0, "")
    assert "resuming after" in done.stdout
    file = read_token_file(tmp_path / "x.tokens")
    assert file.header.documents == 1
    assert file.tokens[:-1].astype(np.uint8).tobytes() == text
