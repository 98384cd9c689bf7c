"""Leaving a capsule never takes the place of why the run ends, and only the newest stays."""

import dataclasses
import os

import pytest
from capsule_lab import SOME

from core.errors import CheckpointError, NoRoomError, NotFiniteError
from tests.trainers.trainer_lab import make
from trainers.capsule import leave
from trainers.capsule.batch import packed, read_batch
from trainers.capsule.folder import read_capsule, write_capsule


def given_in(folder):
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "given.gin").write_text("Trainer.steps = 1\n")
    return folder / "config" / "given.gin"


def left(trainer):
    arguments = (trainer.experiment, trainer.settings, trainer.workdir, trainer.input)
    return leave.leaving_capsule(*arguments, NotFiniteError("the loss is inf."), 3)


def test_what_keeps_it_from_being_written_stands_behind_the_reason(tmp_path, monkeypatch):
    def no_room(*_):
        raise NoRoomError("`there` can't be written: No space left on device.")

    trainer = make(tmp_path)
    given_in(trainer.workdir.path)
    monkeypatch.setattr(leave, "write_capsule", no_room)
    error = left(trainer)
    assert isinstance(error, NotFiniteError)
    assert str(error).startswith("the loss is inf. No capsule could be left of the step: `there` can't be written")


def test_where_no_command_could_do_it_again_or_another_worker_leaves_it_there_is_none(tmp_path, monkeypatch):
    trainer = make(tmp_path)
    assert str(left(trainer)) == "the loss is inf."
    given_in(trainer.workdir.path)
    assert "--mode=replay --capsule=" in str(left(trainer))
    monkeypatch.setattr(leave, "is_chief", lambda: False)
    assert str(left(trainer)) == "the loss is inf."
    monkeypatch.undo()
    local = make(tmp_path, "local", local_steps=5)
    given_in(local.workdir.path)
    assert str(left(local)) == "the loss is inf."


def test_one_whose_index_was_changed_is_damaged(tmp_path):
    path = write_capsule(tmp_path, SOME, b"", given_in(tmp_path), None)
    index = path / "capsule.json"
    index.write_text(index.read_text().replace('"step": 3', '"step": 4'))
    with pytest.raises(CheckpointError, match=r"`capsule.json` is not as it was written"):
        read_capsule(path)


def no_second_names(*_):
    raise PermissionError("this disk knows no links")


def test_the_newest_alone_is_kept_and_what_was_begun_is_removed(tmp_path, monkeypatch):
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
