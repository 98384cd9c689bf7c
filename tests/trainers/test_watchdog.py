"""The watchdog: a section that hangs ends the run."""

import json
import threading
from types import SimpleNamespace

import pytest
from command_lab import write_task

from core.errors import ConfigurationError
from tests.commands import run
from trainers.process.watchdog import LEAST, Hang, Limits, Watchdog, signs_of_writer, write_stacks

HANGS = """
import time
from trainers.hooks import Hook

@gin.configurable
class Hangs(Hook):
    def __call__(self, run):
        if run.step == 10:
            run.save()
        else:
            while True:
                time.sleep(0.1)
"""


@pytest.mark.waits
@pytest.mark.long
def test_a_hook_that_hangs_ends_the_run_with_6(tmp_path):
    hook = ("--gin_param=Trainer.hooks = [@Hangs()]", "--gin_param=Hangs.every = 10")
    deadline = "--gin_param=Trainer.section_deadline = 30"  # time for a loaded machine to trace
    done = run(write_task(tmp_path, outside=HANGS), *hook, deadline, cwd=tmp_path)
    assert done.returncode == 6, (done.returncode, done.stderr)
    *stacks, last = done.stderr.strip().split("\n")
    assert last.startswith("error: the hook `Hangs` has shown no progress for 30 s")
    assert any("mine.py" in line for line in stacks)
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (6, 20)
    assert f"error: {result['reason']}" == last
    assert "after step 20: the stacks above show where it hangs, and so does `runs/mine/stacks.txt`" in last
    kept = (tmp_path / "runs" / "mine" / "stacks.txt").read_text()
    assert kept.startswith(last.removeprefix("error: "))
    assert "mine.py" in kept


SLOW = """
import time

@gin.configurable
def slow():
    time.sleep(1000.0)
"""


@pytest.mark.long
def test_set_up_that_hangs_ends_the_start_with_6(tmp_path):
    source = "--gin_param=Experiment.train_source = @slow()"
    limit = "--gin_param=Trainer.section_deadlines = {'set-up': %seconds}"  # a macro is read without making the hooks
    done = run(write_task(tmp_path, outside=SLOW), source, limit, "--gin_param=seconds = 3", cwd=tmp_path)
    assert done.returncode == 6, (done.returncode, done.stderr)
    last = done.stderr.strip().split("\n")[-1]
    assert last.startswith(
        "error: set-up has shown no progress for 3 s (`Trainer.section_deadlines['set-up']`): the stacks"
    )
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (6, None)
    assert "slow" in (tmp_path / "runs" / "mine" / "stacks.txt").read_text()


class Ticks:
    """A clock that a test moves, and the pauses of the watching thread: one `look` at a time."""

    def __init__(self):
        self.now, self.found = 0.0, []
        self.dog = Watchdog(clock=lambda: self.now)
        self.dog._asleep = self
        self.go, self.looked, self.ended = threading.Semaphore(0), threading.Semaphore(0), False

    def wait(self, seconds):
        self.looked.release()
        self.go.acquire()
        return self.ended

    def clear(self):
        pass

    def set(self):
        self.ended = True
        self.go.release()

    def settle(self):
        assert self.looked.acquire(timeout=60)
        self.looked.release()

    def look(self, after=10.0, times=1):
        for _ in range(times):
            assert self.looked.acquire(timeout=60)
            self.now += after
            self.go.release()
        if not self.found:
            return
        raise AssertionError(self.found)

    def is_silent_for(self, seconds):
        """Lets time pass without a sign of life; the watchdog finds nothing."""
        self.look(times=int(seconds // 10))
        self.settle()
        assert self.found == []

    def hangs_within(self, seconds):
        """Returns the section that the watchdog reports as hung."""
        for _ in range(int(seconds // 10)):
            assert self.looked.acquire(timeout=60)
            self.now += 10.0
            self.go.release()
            for thread in threading.enumerate():
                while thread.name == "watchdog" and thread.is_alive() and not self.looked._value:
                    thread.join(0.001)
            if self.found:
                return self.found[0]
        raise AssertionError("nothing is found")


def test_deadline_is_put_off_by_life_or_a_stopped_process_alone():
    ticks = Ticks()
    with ticks.dog.awake(Limits(80.0), ticks.found.append):
        for _ in range(20):
            ticks.dog.begin("step", "training")
            ticks.look()
        ticks.look(after=10_000.0, times=5)  # SIGSTOP, or a closed lid
        ticks.settle()
        assert ticks.found == []
        ticks.dog.begin("hook", "the hook `Mine`")
        ticks.is_silent_for(70)
        assert ticks.hangs_within(30) == Hang("hook", "the hook `Mine`", 80.0)


def passes(ticks, section, what, seconds):
    """Makes a section silent for so long, and then end."""
    ticks.dog.begin(section, what)
    ticks.is_silent_for(seconds)
    ticks.dog.begin("step", "training")
    ticks.look()


def test_limits_are_learnt_from_the_longest_silence_of_each_section():
    """A time that the process was stopped isn't learnt, and each hook has a separate limit."""
    ticks = Ticks()
    with ticks.dog.awake(Limits(50_000.0), ticks.found.append):
        passes(ticks, "evaluation", "the evaluation", 20)
        passes(ticks, "hook", "the hook `Slow`", 300)
        ticks.dog.begin("evaluation", "the evaluation")
        ticks.look(after=10_000.0)
        passes(ticks, "evaluation", "the evaluation", LEAST["evaluation"] - 30)  # longer than ever before
        passes(ticks, "hook", "the hook `Slow`", 2500)
        passes(ticks, "hook", "the hook `New`", 4000)
        ticks.dog.begin("evaluation", "the evaluation")
        hang = ticks.hangs_within(10_000)
        assert hang.section == "evaluation"
        assert hang.limit == pytest.approx(10 * LEAST["evaluation"], rel=0.05)


def test_sections_between_two_looks_are_known():
    ticks = Ticks()
    with ticks.dog.awake(Limits(3600.0), ticks.found.append):
        for section in ("step", "data", "step"):
            ticks.dog.begin(section, "training")
        assert ticks.hangs_within(1000) == Hang("step", "training", LEAST["step"])


def test_given_limits_stand_and_waiting_has_the_general_limit():
    ticks, waits = Ticks(), [True]
    limits = Limits(2000.0, {"save": 100.0, "evaluation": None})
    with ticks.dog.awake(limits, ticks.found.append, is_waiting=lambda: waits[0]):
        passes(ticks, "step", "training", 10)
        passes(ticks, "step", "training", 1900)
        passes(ticks, "evaluation", "the evaluation", 5000)
        ticks.dog.begin("save", "writing a checkpoint")
        assert ticks.hangs_within(120) == Hang("save", "writing a checkpoint", 100.0)


def test_writer_thread_is_watched_separately():
    """Training continues meanwhile; the next checkpoint is another."""
    ticks, saves = Ticks(), SimpleNamespace(under_way=None)
    with ticks.dog.awake(Limits(3000.0, {"save": 500.0}), ticks.found.append, beside=[signs_of_writer(saves)]):
        for _ in range(3):
            saves.under_way = object()
            for _ in range(45):
                ticks.dog.begin("step", "training")
                ticks.look()
        saves.under_way = None
        ticks.is_silent_for(600)
        saves.under_way = object()
        ticks.dog.begin("step", "training")
        assert ticks.hangs_within(520) == Hang("save", "writing a checkpoint", 500.0)


def test_watchdog_has_no_thread_without_a_limit():
    before = threading.active_count()
    dog = Watchdog()
    dog.begin("step", "training")
    with dog.awake(Limits(None), lambda section: None):
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("limits", "section", "longest", "limit", "reason"),
    [
        (Limits(3600.0), "step", None, 3600.0, "`Trainer.section_deadline`"),
        (Limits(3600.0), "step", 1.0, 900.0, "10 times its longest pause so far, at least 900 s"),
        (Limits(3600.0), "step", 200.0, 2000.0, "10 times its longest pause so far"),
        (Limits(3600.0), "step", 2000.0, 3600.0, "`Trainer.section_deadline`"),
        (Limits(30.0), "step", 1.0, 30.0, "`Trainer.section_deadline`"),
        (Limits(None), "step", 1.0, None, ""),
        (Limits(30.0), "set-up", None, 3600.0, "no set-up should take that"),
        (Limits(5000.0), "set-up", None, 5000.0, "`Trainer.section_deadline`"),
        (Limits(None), "set-up", None, None, ""),
        (Limits(30.0, {"step": 60}), "step", 1.0, 60, "`Trainer.section_deadlines['step']`"),
        (Limits(30.0, {"step": None}), "step", 1.0, None, ""),
    ],
)
def test_limits_and_their_reasons(limits, section, longest, limit, reason):
    assert limits.of(section, longest) == limit
    if limit is not None:
        assert limits.reason(section, limit).startswith(reason)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"evalution": 60}, "names the section 'evalution'; .* Did you mean `evaluation`?"),
        ({3: 60}, "names the section 3"),
        ({"step": 0}, r"`Trainer.section_deadlines\['step'\]` is 0; it is a time in seconds"),
        (60, "`Trainer.section_deadlines` is 60; give a dictionary"),
        ({"step": "60"}, r"`Trainer.section_deadlines\['step'\]` is '60'"),
    ],
)
def test_wrong_limits_are_refused(given, says):
    with pytest.raises(ConfigurationError, match=says):
        Limits(3600.0, given)


def test_stacks_are_written_with_the_names_of_all_threads(tmp_path):
    write_stacks(tmp_path / "stacks.txt", "it hangs")
    text = (tmp_path / "stacks.txt").read_text()
    assert text.startswith("it hangs\n")
    assert "in test_stacks_are_written_with_the_names_of_all_threads" in text
    assert str(threading.get_native_id()) in text.partition("All threads")[2]
