"""Leaving a capsule never takes the place of why the run ends, and only the newest stays."""

import dataclasses
import os

import pytest
from capsule_lab import SOME, given_in

from core.errors import NoRoomError, NotFiniteError
from tests.toys import Line, point_source
from tests.trainers.trainer_lab import make
from trainers.capsule import leave
from trainers.capsule.batch import packed, read_batch
from trainers.capsule.folder import read_capsule, write_capsule


def left(trainer):
    arguments = (trainer.experiment, trainer.settings, trainer.workdir, trainer.input)
    return leave.leaving_capsule(*arguments, NotFiniteError("the loss is inf."), 3)


def test_capsule_that_can_not_be_written_is_told_behind_the_reason(tmp_path, monkeypatch):
    def no_room(*_):
        raise NoRoomError("`there` can't be written: No space left on device.")

    trainer = make(tmp_path, task=Line, source=point_source())
    assert str(left(trainer)) == "the loss is inf."  # no command could do the step again
    given_in(trainer.workdir.path)
    assert "--mode=replay --capsule=" in str(left(trainer))
    with monkeypatch.context() as patch:
        patch.setattr(leave, "is_chief", lambda: False)  # another worker leaves it
        assert str(left(trainer)) == "the loss is inf."
    monkeypatch.setattr(leave, "write_capsule", no_room)
    error = left(trainer)
    assert isinstance(error, NotFiniteError)
    assert str(error).startswith("the loss is inf. No capsule could be left of the step: `there` can't be written")


def test_local_steps_leave_no_capsule(tmp_path):
    local = make(tmp_path, task=Line, source=point_source(64), global_batch_size=8, local_steps=5)
    given_in(local.workdir.path)
    assert str(left(local)) == "the loss is inf."


def no_second_names(*_):
    raise PermissionError("this disk knows no links")


def test_newest_alone_is_kept_and_what_was_begun_is_removed(tmp_path, monkeypatch):
    given = given_in(tmp_path)
    checkpoint = tmp_path / "checkpoints" / "step-000000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    first = write_capsule(tmp_path, SOME, packed({"file": [1.0]}), given, checkpoint)
    assert (first / "checkpoints" / checkpoint.name / "manifest.json").stat().st_nlink == 2
    assert read_batch(first)["file"].tolist() == [1.0]
    monkeypatch.setattr(os, "link", no_second_names)
    later = dataclasses.replace(SOME, step=5)
    second = write_capsule(tmp_path, later, packed({"file": [2.0]}), given, checkpoint)
    assert [path.name for path in (tmp_path / "capsules").iterdir()] == [second.name]
    assert (second / "checkpoints" / checkpoint.name / "manifest.json").read_text() == "{}"
    assert read_capsule(second) == later
    with pytest.raises(FileNotFoundError):
        write_capsule(tmp_path, SOME, b"", tmp_path / "nowhere", None)
    assert [path.name for path in (tmp_path / "capsules").iterdir()] == [second.name]
    assert read_capsule(second) == later
