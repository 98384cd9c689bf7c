"""Writing a capsule never hides the original error, and only the newest stays; replays describe them."""

import dataclasses
import os

import pytest
from capsule_lab import SOME, given_in

import core.layers.linear
from core.errors import NoRoomError, NotFiniteError
from tests import toys
from tests.trainers.trainer_lab import make
from trainers.replay.capsule import leave
from trainers.replay.capsule.batch import packed, read_batch
from trainers.replay.capsule.find import Finding
from trainers.replay.capsule.folder import read_capsule, write_capsule
from trainers.replay.capsule.report import report
from trainers.replay.capsule.trail import Line, Operation


def left(trainer):
    return leave.leaving_capsule(trainer.programs.context, NotFiniteError("the loss is inf."), 3)


def test_capsule_that_cannot_be_written_is_reported_after_the_reason(tmp_path, monkeypatch):
    def no_room(*_):
        raise NoRoomError("`there` can't be written: No space left on device.")

    trainer = make(tmp_path, task=toys.Line, source=toys.point_source())
    assert str(left(trainer)) == "the loss is inf."  # no command could repeat the step
    given_in(trainer.workdir.path)
    assert "--mode=replay --capsule=" in str(left(trainer))
    with monkeypatch.context() as patch:
        patch.setattr(leave, "is_chief", lambda: False)  # another worker writes it
        assert str(left(trainer)) == "the loss is inf."
    monkeypatch.setattr(leave, "write_capsule", no_room)
    error = left(trainer)
    assert isinstance(error, NotFiniteError)
    assert str(error).startswith("the loss is inf. The step's capsule couldn't be written: `there` can't be written")


def test_local_steps_leave_no_capsule(tmp_path):
    local = make(tmp_path, task=toys.Line, source=toys.point_source(64), global_batch_size=8, local_steps=5)
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


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    return make(folder, task=toys.Line, source=toys.point_source(60), global_batch_size=12, microbatches=2)


def told(trainer, *, rows=None, origin=None, replicas=1):
    found = Finding("net", ["its loss"], origin, [], rows)
    return report(found, trainer, dataclasses.replace(SOME, replicas=replicas), 3)


def test_row_is_named_with_its_example_and_its_replica(trainer):
    examples = trainer.input.examples_of(3)
    assert examples.shape == (2, 6)
    said = told(trainer, rows=[1, 4, 8], replicas=3).splitlines()[-3:]
    assert said[0].endswith(f"1 of 12: example {examples[0, 1]} of source `points`, on replica 0")
    assert said[1].endswith(f"4 of 12: example {examples[0, 4]} of source `points`, on replica 2")
    assert said[2].endswith(f"8 of 12: example {examples[1, 2]} of source `points`, on replica 1")
    assert "replica" not in told(trainer, rows=[1])


def test_many_rows_are_summarised_in_a_line(trainer):
    assert told(trainer, rows=list(range(12))).endswith("row        each of the 12 alone")
    assert told(trainer, rows=list(range(8))).endswith("row        each of the first 8 alone, and perhaps more")
    assert told(trainer, rows=[0, 2, 3, 4, 5, 6, 7, 8]).endswith("             and perhaps more")
    assert told(trainer, rows=[]).endswith("row        none alone: their sum is")
    assert "row" not in told(trainer)


def test_lines_of_layers_are_reported_once_without_hiding_the_user_s(trainer):
    layers = [Line(core.layers.linear.__file__, number, "inner") for number in range(1, 6)]
    own = [Line(__file__, number, "outer") for number in (1, 3)]
    operation = Operation(1, "MatMul", [*layers, *own], "", [], [], [])
    lines = [line for line in told(trainer, origin=operation).splitlines() if line.startswith(" " * 13)]
    assert ["linear.py:1 " in lines[0], "test_leaving.py:1 " in lines[1], "test_leaving.py:3 " in lines[2]] == [
        True
    ] * 3
    assert len(lines) == 3
