"""A section that hangs ends the run; one that goes on, or was stopped, doesn't."""

import json
import threading

import pytest
from command_lab import write_task

from tests.commands import run_process
from trainers.watchdog import Watchdog

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


@pytest.mark.long
def test_a_hook_that_hangs_ends_the_run_with_6(tmp_path):
    hook = ("--gin_param=Trainer.hooks = [@Hangs()]", "--gin_param=Hangs.every = 10")
    deadline = "--gin_param=Trainer.section_deadline = 30"  # time for a loaded machine to trace
    done = run_process(write_task(tmp_path, outside=HANGS), *hook, deadline, cwd=tmp_path)
    assert done.returncode == 6, (done.returncode, done.stderr)
    *stacks, last = done.stderr.strip().split("\n")
    assert last.startswith("error: the hook `Hangs` has shown no life for 30 s")
    assert any("mine.py" in line for line in stacks)
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (6, 20)
    assert f"error: {result['reason']}" == last


class Ticks:
    """A clock that a test moves, and the pauses of the thread that looks at it: one `look` at a time."""

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

    def look(self, after):
        assert self.looked.acquire(timeout=60)
        self.now += after
        self.go.release()


def test_life_and_a_stopped_process_put_off_the_deadline_and_silence_does_not():
    ticks = Ticks()
    with ticks.dog.awake(80.0, ticks.found.append):
        for _ in range(20):
            ticks.dog.begin("training")
            ticks.look(after=10.0)
        for _ in range(5):
            ticks.look(after=10_000.0)  # SIGSTOP, or a closed lid
        ticks.settle()
        assert ticks.found == []
        ticks.dog.begin("the hook `Mine`")
        for _ in range(7):
            ticks.look(after=10.0)
        ticks.settle()
        assert ticks.found == []
        for _ in range(3):
            ticks.look(after=10.0)
        watching = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
        for thread in watching:
            thread.join(60)
    assert ticks.found == ["the hook `Mine`"]


def test_it_sleeps_until_it_is_woken():
    before = threading.active_count()
    dog = Watchdog()
    dog.begin("training")
    with dog.awake(None, lambda section: None):
        assert threading.active_count() == before
