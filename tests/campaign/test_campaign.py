"""The campaign's short form holds, and the campaign sees what it is there to see."""

import errno
import json
import os
import random

import pytest

from core.errors import DataError
from tests.campaign import marks, mutate, subject
from tests.campaign.__main__ import PARTS, main
from tests.campaign.lab import Bench, Lab, Tally


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_the_short_form_of_each_part_loses_nothing(part, capsys):
    code = main(["--short", "--parts", part])
    assert code == 0, capsys.readouterr().out


def test_every_change_of_the_folder_has_a_mark_and_others_have_none(tmp_path):
    seen = marks.Marks(str(tmp_path), None, lambda name: None)
    events = [
        ("open", (str(tmp_path / "a"), "w", os.O_WRONLY | os.O_CREAT), "open a"),
        ("open", (str(tmp_path / "a"), "r", os.O_RDONLY), None),
        ("open", (str(tmp_path.parent / "a"), "w", os.O_WRONLY | os.O_CREAT), None),
        ("open", (str(tmp_path) + "er", "w", os.O_WRONLY | os.O_CREAT), None),
        ("open", (3, "w", os.O_WRONLY | os.O_CREAT), None),
        ("os.mkdir", (tmp_path / "b", 0o777, -1), "mkdir b"),
        ("os.rename", (str(tmp_path / "c"), str(tmp_path / "d"), -1, -1), "rename d"),
        ("os.listdir", (str(tmp_path),), None),
        ("section", ("tracing",), "section tracing"),
    ]
    assert [seen.named(event, arguments) for event, arguments, _ in events] == [name for *_, name in events]


def test_it_acts_at_the_chosen_mark_alone_unless_it_is_to_last(tmp_path):
    acted = []
    once = marks.Marks(str(tmp_path), "open a #2", acted.append)
    for _ in range(3):
        once.pass_by("open a")
    assert acted == ["open a"]
    full = marks.Marks(str(tmp_path), "open a #1", marks.fill_disk(), lasts=True)
    full.pass_by("mkdir b")
    for name in ("open a", "mkdir c"):
        with pytest.raises(OSError, match=name.split()[1]) as caught:
            full.pass_by(name)
        assert caught.value.errno == errno.ENOSPC
    full.pass_by("rename d")


def test_what_differs_in_a_finished_workdir_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.modes.resume_check.list_differences", lambda one, other: [])
    for name, figure in (("one", 1.0), ("other", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"evaluation": {"told/calls": figure}}))
    (tmp_path / "other" / ".write-7").touch()
    found = subject.differences(tmp_path / "one", tmp_path / "other")
    assert len(found) == 2
    assert "told/calls" in found[0]
    assert found[1] == "`.write-7` is left over"


def test_a_failure_says_how_it_is_repeated(tmp_path):
    tally = Tally()
    Bench(Lab(tmp_path, 3, short=True), "a case", tally, "python -m ...").fail("lost")
    assert tally.failures == ["a case: lost\n    python -m ..."]


@pytest.mark.parametrize(
    ("reader", "says"),
    [(IndexError("list index"), "wrong: IndexError: 'list index'"), (DataError("damaged"), "refused"), (None, "read")],
)
def test_a_reader_that_stumbles_is_told_from_one_that_refuses(reader, says, monkeypatch, capsys):
    calls = []

    def read(content, folder):
        calls.append(content)
        if reader is not None and len(calls) > 1:
            raise reader

    monkeypatch.setitem(mutate.KINDS, "probe", (lambda: b"abc", read))
    monkeypatch.setattr(mutate.resource, "setrlimit", lambda which, limits: None)
    mutate.main("probe", 0, 5, 1)
    assert capsys.readouterr().out.splitlines() == ["5", says]


def test_a_mutant_can_be_made_again():
    content = bytes(range(256))
    made = [mutate.mutated(content, random.Random(f"0/idx/{n}")) for n in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
