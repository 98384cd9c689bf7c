"""Workdirs in unusual states: leftovers, foreign files, pipes, folders that vanish."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from core import checkpoint
from core.checkpoint.files import sync
from core.errors import CheckpointError, ConfigurationError
from tests.commands import CONFIGS, refused
from tests.trainers.trainer_lab import idle, make, train
from trainers.errors.exit_report import exit_code_of, reason_of
from trainers.hooks import Hook
from trainers.main import main
from trainers.workdir import Workdir


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.create()
    return workdir


def test_temporaries_of_dead_processes_go(workdir):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        dead, alive = process.pid, os.getppid()
    (workdir.path / "config/history").mkdir(parents=True)
    (workdir.path / "samples").mkdir()
    (workdir.path / f"config/history/.{dead}.tmp").mkdir()
    (workdir.path / f"config/history/.{dead}.tmp/given.gin").touch()
    gone = [
        f".write-{dead}", f"run.{dead}.tmp", f".result.json.{dead}.tmp", f".result.json.{os.getpid()}.tmp",
        f"config/.given.gin.{dead}.tmp", f".metrics.jsonl.{dead}.tmp", f"samples/.step-000000100.png.{dead}.tmp",
    ]  # fmt: skip
    theirs = [f"notes.{dead}.tmp", f"data.{dead}.tmp/x", f".data.{dead}.tmp/x", f".{dead}.tmp.txt", "mine.tmp"]
    (workdir.path / theirs[1]).parent.mkdir()
    (workdir.path / theirs[2]).parent.mkdir()
    kept = [f".write-{alive}", f".result.json.{alive}.tmp", "samples/step-000000100.png", "config/a.gin", *theirs]
    for name in (*gone, *kept):
        (workdir.path / name).touch()
    workdir.lock()
    found = {str(path.relative_to(workdir.path)) for path in workdir.path.rglob("*") if path.is_file()}
    assert found == {*kept, ".lock"}
    assert not list((workdir.path / "config/history").iterdir())


def test_folder_that_cannot_be_read_is_warned_of_once(workdir, capsys, monkeypatch):
    (workdir.path / "samples").mkdir()
    (workdir.path / f"run.{2**22 + 1}.tmp").touch()
    read = type(workdir.path).iterdir

    def iterdir(path):  # root may read anything
        if path.name == "samples":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(type(workdir.path), "iterdir", iterdir)
    workdir.lock()
    (warning,) = capsys.readouterr().out.splitlines()
    assert warning.endswith("samples` could not be searched for leftovers: Permission denied.")
    assert {path.name for path in read(workdir.path)} == {"samples", ".lock"}


FILES = ["result.json", "metrics.jsonl", "warnings.jsonl", ".lock", "run.json", "native_stderr.log"]
FOLDERS = ["config", "config/history", "samples", "events"]


@pytest.mark.parametrize("name", FILES + FOLDERS)
@pytest.mark.parametrize("kind", ["pipe", "other"])
def test_entry_of_the_wrong_kind_is_named(workdir, name, kind):
    path = workdir.path / name
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif name in FOLDERS:
        path.touch()
    else:
        path.mkdir()
    with pytest.raises(ConfigurationError, match=f"{name}` isn't a"):
        workdir.create()


@pytest.mark.parametrize("make", [lambda p: p.touch(), os.mkfifo, lambda p: p.symlink_to("nowhere")])
def test_workdir_that_is_no_folder_is_refused(tmp_path, make):
    make(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"run` can't be written"):
        Workdir(tmp_path / "run").create()


@pytest.mark.parametrize("flag", ["s3://b", "gs://b/../x", "hdfs://x/y", "file:///tmp/x"])
def test_remote_workdirs_are_refused_by_name(flag, capsys):
    for name in (f"--workdir={flag}", f"--export_dir={flag}"):
        assert main(["--gin_file=configs/digits_linear.gin", "--mode=export", name]) == 2
        assert f"`{name.partition('=')[0]}` is '{flag}'" in capsys.readouterr().err


RESULT = {"step": 40, "exit_code": 0, "evaluation": {"loss": 1.0}}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[1]", b"3", b"null", b"{}", b"[" * 100_000, b"9" * 5000, *(
        json.dumps({**RESULT, key: value}).encode()
        for key, value in [("step", "40"), ("step", None), ("exit_code", True), ("evaluation", [1]), ("step", [])]
    )],
)  # fmt: skip
def test_a_foreign_result_is_none(workdir, content):
    assert workdir.read_result() == {}
    workdir.result.write_bytes(json.dumps(RESULT).encode())
    assert workdir.read_result() == RESULT
    workdir.result.write_bytes(content)
    assert workdir.read_result() == {}


class Remove(Hook):
    """Removes the workdir, or replaces it."""

    def __init__(self, every, again):
        super().__init__(every)
        self.again = again

    def __call__(self, run):
        run.workdir.path.rename(run.workdir.path.with_name("moved"))
        if self.again:
            run.workdir.path.mkdir()


@pytest.mark.parametrize("again", [False, True])
def test_a_workdir_that_vanishes_is_noticed_at_the_next_save(tmp_path, again):
    trainer = idle(make(tmp_path, hooks=[Remove(40, again)], log_every=None))
    trainer.workdir.lock()
    with pytest.raises(CheckpointError, match="was removed or moved"):
        train(trainer)
    assert not trainer.workdir.checkpoints.exists()


def test_checkpoint_of_a_custom_loop_is_refused(tmp_path):
    w = {"w": tf.Variable([1.0])}
    checkpoint.save(tmp_path / "run/checkpoints", w, step=5, examples=5, config_hash="mine", extra={"hooks": 3})
    linear = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
    refused(linear, "--workdir=run", cwd=tmp_path, exit_code=2, says=["step-000000005", "a custom loop"])
    allowed = [linear, "--workdir=run", "--allow_config_change"]
    refused(*allowed, cwd=tmp_path, exit_code=5, says=["doesn't fit this model"])
    assert not (tmp_path / "run/config").exists()


def test_file_that_the_system_refuses_is_named_with_the_next_action(workdir):
    path = workdir.path / "gone"
    with pytest.raises(FileNotFoundError) as caught:
        sync(path)
    assert exit_code_of(caught.value) == 2
    assert reason_of(caught.value) == (
        f"`{path}` can't be opened, read or written: No such file or directory. Check the file and its permissions; "
        "the same command then resumes."
    )


def test_workdir_is_there_before_tensorflow_starts(tmp_path):
    code = (
        "import pathlib, sys; from trainers.workdir import Workdir; "
        f"Workdir(pathlib.Path({str(tmp_path / 'run')!r})).create(); print('tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
    assert (tmp_path / "run").is_dir()
