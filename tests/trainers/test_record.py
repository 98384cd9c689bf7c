"""The record of a run's starts in its workdir."""

import json
import os
from pathlib import Path

import pytest

from core.errors import NoRoomError
from tests.commands import run
from tests.trainers.command_lab import write_task
from trainers.lifecycle import start
from trainers.workdir import Workdir


def kept(workdir):
    return {path: path.read_bytes() for path in [*(workdir / "config").rglob("*.*"), workdir / "run.json"]}


@pytest.mark.long
def test_only_a_start_that_succeeds_is_recorded(tmp_path):
    flags = [write_task(tmp_path), "--workdir=run", "--gin_param=Trainer.checkpoint_every = 10"]
    done = run(*flags, "--kill_after_step=10", cwd=tmp_path)
    good = kept(tmp_path / "run")
    assert len(good) == 5, done.stderr
    result = tmp_path / "run" / "result.json"
    assert not result.exists()  # it was killed
    longer = "--gin_param=Trainer.steps = 30"
    other_model = {"init": "self.net.unused = tf.Variable(tf.ones([4]), name='unused')"}
    broken_trace = {"outside": "from trainers.trainer import Trainer\nTrainer.warm_up = lambda *_: 1 / 0"}
    for parts, says in [(other_model, "doesn't fit"), (broken_trace, "ZeroDivisionError")]:
        write_task(tmp_path, **parts)
        failed = run(*flags, longer, "--allow_config_change", cwd=tmp_path)
        assert failed.returncode > 0, failed.stdout
        assert says in failed.stderr
        assert kept(tmp_path / "run") == good
        why = json.loads(result.read_text())
        assert (why["step"], why["exit_code"]) == (None, failed.returncode)
        assert says in why["reason"]
    write_task(tmp_path)
    assert run(*flags, longer, cwd=tmp_path).returncode == 0
    again = run("--gin_file=run/config/given.gin", "--workdir=run", cwd=tmp_path)  # equivalent to all flags
    assert "already finished" in again.stdout, again.stderr
    finished = result.read_bytes()
    assert (json.loads(finished)["step"], json.loads(finished)["exit_code"]) == (30, 0)
    write_task(tmp_path, outside="raise ValueError('mine')")
    assert run(*flags, longer, cwd=tmp_path).returncode == 1
    assert result.read_bytes() == finished
    config = tmp_path / "run" / "config"
    entries = sorted(path.name for path in (config / "history").iterdir())
    assert entries == ["0001-step-000000000", "0002-step-000000010"]
    assert (config / "history" / entries[0] / "operative.gin").read_bytes() == good[config / "operative.gin"]
    for name in ("given.gin", "operative.gin"):
        assert (config / "history" / entries[1] / name).read_bytes() == (config / name).read_bytes()
    assert "Trainer.steps = 30" in (config / "given.gin").read_text()


def test_a_failed_start_says_why_where_no_run_has_left_its_result(tmp_path):
    def failed_start(reason):
        Workdir(tmp_path).write_failed_start(exit_code=2, reason=reason)
        return json.loads((tmp_path / "result.json").read_text())

    assert failed_start("one") == {"step": None, "exit_code": 2, "reason": "one", "evaluation": {}}
    assert failed_start("another")["reason"] == "another"
    (tmp_path / "result.json").write_text("torn")
    assert failed_start("third")["reason"] == "third"
    running = Workdir(tmp_path)
    running.lock()
    assert failed_start("in the way")["reason"] == "third"  # only the run writes it
    running.write_result(step=3, exit_code=3, reason="not finite", evaluation={})
    del running
    assert failed_start("too late")["reason"] == "not finite"


def test_a_second_start_of_the_same_adds_nothing(tmp_path):
    workdir = Workdir(tmp_path)
    start.record_start(workdir, step=0, given="a = 1  # here\n", operative="a = 1\n", devices=["CPU:0"])
    start.record_start(workdir, step=40, given="a = 1  # there\n", operative="a = 1\n", devices=["CPU:0"])
    assert [path.name for path in (tmp_path / "config/history").iterdir()] == ["0001-step-000000000"]
    assert (tmp_path / "config/given.gin").read_text() == "a = 1  # there\n"
    assert json.loads((tmp_path / "run.json").read_text())["devices"] == ["CPU:0"]


@pytest.mark.parametrize("full", [1, 2, 3, 4, 5])
def test_full_disk_leaves_the_files_as_they_were(tmp_path, monkeypatch, full):
    workdir, calls = Workdir(tmp_path), []
    start.record_start(workdir, step=0, given="a = 1\n", operative="a = 1\n", devices=[])
    good = kept(tmp_path)

    def fill(function):
        """Makes the disk full after `full` files are written, the last of them in part."""

        def call(*arguments, **options):
            result = function(*arguments, **options)
            calls.append(arguments)
            if len(calls) == full:
                raise OSError(28, "No space left on device")
            return result

        return call

    monkeypatch.setattr(Path, "write_text", fill(Path.write_text))
    monkeypatch.setattr(os, "fsync", fill(os.fsync))
    with pytest.raises(NoRoomError, match="No space left"):
        start.record_start(workdir, step=9, given="a = 2\n", operative="a = 2\n", devices=[])
    monkeypatch.undo()
    now = kept(tmp_path)
    assert {path: now[path] for path in good} == good
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    start.record_start(workdir, step=9, given="a = 2\n", operative="a = 2\n", devices=[])
    assert [path.name for path in sorted((tmp_path / "config/history").iterdir())][1:] == ["0002-step-000000009"]


def test_history_of_an_old_run_begins_with_its_configuration(tmp_path):
    (tmp_path / "config").mkdir()
    for name in ("given.gin", "operative.gin"):
        (tmp_path / "config" / name).write_text("a = 1\n")
    start.record_start(Workdir(tmp_path), step=500, given="a = 2\n", operative="a = 2\n", devices=[])
    history = tmp_path / "config/history"
    assert {path.name: (path / "given.gin").read_text() for path in history.iterdir()} == {
        "0001-step-000000000": "a = 1\n", "0002-step-000000500": "a = 2\n"
    }  # fmt: skip
