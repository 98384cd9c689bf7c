"""Hooks follow a training from chunk to chunk, and are closed however it ends."""

import pytest

from tests.trainers.trainer_lab import Crash, idle, make
from trainers.hooks import Hook


class Following(Hook):
    """Records its calls."""

    def __init__(self):
        super().__init__()
        self.told = []

    def begin(self, run):
        self.told.append(("begin", run.step))

    def before_chunk(self, run):
        self.told.append(("before", run.step))

    def after_chunk(self, run):
        self.told.append(("after", run.step))

    def __call__(self, run):
        self.told.append(("call", run.step))

    def close(self):
        self.told.append(("close", None))


def test_hook_is_called_for_each_chunk(tmp_path):
    following = Following()
    idle(make(tmp_path, steps=20, hooks=[following])).train()
    chunks = [("before", 0), ("after", 10), ("before", 10), ("after", 20)]
    assert following.told == [("begin", 0), *chunks, ("call", 20), ("close", None)]


def test_hook_is_closed_if_the_run_fails(tmp_path):
    following = Following()
    with pytest.raises(RuntimeError, match="crash"):
        idle(make(tmp_path, steps=20, hooks=[following, Crash(10)])).train()
    assert following.told[-1] == ("close", None)
