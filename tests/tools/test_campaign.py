"""Tests of the campaign: its short form loses nothing, and it reports what breaks a run."""

import errno
import json
import os
import random
import signal
import threading

import pytest

from core.errors import DataError
from tests.commands import run
from tools.campaign import counted, kills, marks, meeting, mutate, mutation, room, signals, small_disk, subject
from tools.campaign.__main__ import main, run_case, run_part
from tools.campaign.lab import Bench, Case, Lab
from tools.campaign.report import Tally, print_table


@pytest.mark.long
def test_short_campaign_loses_nothing(capsys):
    code = main(["--short"])
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


def test_mark_acts_once_unless_it_is_to_last(tmp_path):
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


def test_differences_of_finished_workdirs_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.modes.resume_check.list_differences", lambda one, other: [])
    for name, figure in (("one", 1.0), ("other", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"evaluation": {"told/calls": figure}}))
    (tmp_path / "other" / ".write-7").touch()
    found = subject.differences(tmp_path / "one", tmp_path / "other")
    assert len(found) == 2
    assert "told/calls" in found[0]
    assert found[1] == "`.write-7` is left over"


def test_miscounted_step_is_seen_in_each_place_that_tells_of_it(tmp_path):
    counted.write(tmp_path / "here")
    steps = 2 * counted.EVERY
    bindings = [f"--gin_param=Trainer.steps = {steps}", "--gin_param=Trainer.checkpoint_every = None"]
    done = run("--gin_file=counted.gin", "--workdir=run", *bindings, cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr
    workdir = tmp_path / "here" / "run"
    assert counted.miscounts(workdir, steps) == []
    metrics = workdir / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[0]["example"] += 1.0
    lines[1]["most"] += 1.0
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:-1]))
    step = workdir / "checkpoints" / f"step-{steps + 1:09}"
    step.with_name(f"step-{steps:09}").rename(step)
    found = counted.miscounts(workdir, steps + 1)
    assert sorted({text.split(" ")[0] for text in found}) == ["`result.json`", *places(step), "evaluated", "the", "up"]


def places(step):
    """Returns the variables in which the counted run's checkpoint counts."""
    names = [*(f"task.Snet.Sw{i}" for i in range(4)), "optimizer.Snet.Sstep"]
    return sorted(f"`variables/{name}/.ATTRIBUTES/VARIABLE_VALUE`" for name in names)


def test_failure_counts_in_its_row_and_says_how_to_repeat_it(tmp_path, capsys):
    def breaks(bench: Bench) -> None:
        bench.fail("lost")
        raise KeyError("the case's own fault")

    tally = Tally(["a row"])
    run_case(Lab(tmp_path, 3, short=True), "kills", Case("a case", breaks, "a row"), tally)
    again = "\n    python -m tools.campaign --seed=3 --parts kills --only='a case' --short"
    broke = f"a case: the case itself failed: {KeyError('the case' + chr(39) + 's own fault')!r}"
    assert tally.failures == [f"a case: lost{again}", broke + again]
    assert tally.rows["a row"].failures == 2
    capsys.readouterr()
    print_table({"kills": tally}, markdown=True)
    printed = capsys.readouterr().out
    assert "| kills | a row | 0 |  | 2 |" in printed
    assert f"failed: a case: lost{again}" in printed


def test_part_that_tries_too_little_fails(tmp_path, monkeypatch):
    once = Case("once", lambda bench: bench.count("at random"), "mid-save")
    monkeypatch.setattr(kills, "cases", lambda lab: [once])
    whole, short = (run_part(Lab(tmp_path, 0, short=short), "kills", "") for short in (False, True))
    assert whole.failures == ["kills: 1 tried, at least 200 are required"]
    assert (short.tried, short.failures) == (1, [])


def test_part_whose_cases_cannot_be_listed_is_a_failure_and_not_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "cases", lambda lab: 1 / 0)
    tally = run_part(Lab(tmp_path, 0, short=True), "kills", "")
    assert "can't be listed: ZeroDivisionError" in tally.failures[0]


@pytest.mark.parametrize(
    ("seen", "section"),
    [
        ([], "start"),
        (["section set-up #1", "open .write-PID #2"], "set-up"),
        (["section tracing #3", "remove result.json #1"], "tracing"),
        (["section save #1", "rename checkpoints/step-000000010 #1"], "save"),
        (["section save #1", "rename checkpoints/.tmp-removed-step-000000010.replaced #1"], "steps"),
        (["section save #4", "rmdir checkpoints/.tmp-removed-step-000000020 #1"], "steps"),
        (["section save #4", "open .result.json.PID.tmp #1"], "the last result"),
    ],
)
def test_section_follows_from_the_marks_passed(seen, section):
    assert subject.section(seen) == section


def test_signal_sent_thrice_comes_thrice():
    came = []

    def hear(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        with pytest.raises(KeyboardInterrupt):
            marks.send(*[signal.SIGINT] * 3)("section save")
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT] * 3


def test_kill_is_set_off_by_the_thread_that_writes_too(tmp_path, monkeypatch):
    handled, armed = [], []
    monkeypatch.setattr(marks.signal, "signal", lambda *_: handled.append(threading.current_thread()))
    monkeypatch.setattr(marks.signal, "setitimer", lambda *_: armed.append(threading.current_thread()))
    writer = threading.Thread(target=marks.kill_after(9.0), args=("section write",))
    writer.start()
    writer.join()
    assert handled == [threading.main_thread()]  # others may not
    assert armed == [writer]
    assert "within write 1" in {case.name for case in kills.cases(Lab(tmp_path, 0, short=True))}


def test_every_signal_is_sent_in_every_section(tmp_path):
    names = {case.name for case in signals.cases(Lab(tmp_path, 0, short=False))}
    assert {f"{sent} in {section}" for sent in signals.SENT for section in signals.SECTIONS} <= names


def test_small_disk_is_full_and_then_has_room_or_is_not_allowed(tmp_path):
    names = [case.name for case in room.cases(Lab(tmp_path, 0, short=True))]
    if not small_disk.is_allowed():
        assert "no small disk" in names
        return
    assert "a disk of 1 pages" in names
    with small_disk.mounted(tmp_path, size=8192, inodes=10) as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "a").write_bytes(bytes(10_000))
        disk.grow()
        (disk.path / "a").write_bytes(bytes(10_000))
        assert not list(tmp_path.iterdir())  # it is nobody else's


def test_workers_meet_though_a_relay_garbles_a_message(tmp_path, monkeypatch):
    garbled = []
    monkeypatch.setattr(meeting, "mutated", lambda said, chance: garbled.append(said) or b"nonsense")
    relays = {bytes([n]): meeting.Relay(random.Random(bytes([n]))) for n in range(99)}
    content = next(found for found, relay in relays.items() if not relay.from_chief and relay.number == 0)
    meeting.meet_through_a_relay(content, tmp_path)
    assert len(garbled) == 1
    assert b"hello" in garbled[0]


@pytest.mark.parametrize(
    ("reader", "says"),
    [
        (IndexError("list index"), "wrong: IndexError: 'list index'"),
        (DataError("damaged"), "refused"),
        (DataError("\x1b[2J"), "wrong: says what a terminal may obey: '\\x1b[2J'"),
        (None, "read"),
    ],
)
def test_crashing_reader_is_distinguished_from_one_that_refuses(reader, says, monkeypatch, capsys):
    calls = []

    def read(content, folder):
        calls.append(content)
        if reader is not None and len(calls) > 1:
            raise reader

    monkeypatch.setitem(mutate.KINDS, "probe", (lambda: b"abc", read))
    monkeypatch.setattr(mutate.resource, "setrlimit", lambda which, limits: None)
    mutate.main("probe", 0, 5, 1)
    assert capsys.readouterr().out.splitlines() == ["5", says]


def test_reader_that_takes_too_much_memory_is_named(monkeypatch, capsys):
    sizes = iter([1, (mutate.MEMORY >> 20) + 50])  # megabytes
    monkeypatch.setitem(mutate.KINDS, "probe", (lambda: b"abc", lambda content, folder: bytearray(next(sizes) << 20)))
    monkeypatch.setattr(mutate.resource, "setrlimit", lambda which, limits: None)
    mutate.main("probe", 0, 5, 1)
    assert "wrong: took " in capsys.readouterr().out


def test_mutant_can_be_made_again():
    content = bytes(range(256))
    made = [mutation.mutated(content, random.Random(f"0/idx/{n}")) for n in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
