"""`benchmarks.start`: the table, the real command, and a command that never takes a step."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import start
from benchmarks.pages import rows_in
from tests.commands import CHECKOUT


def test_each_way_to_start_has_a_row(monkeypatch):
    monkeypatch.setattr(start, "ours", lambda environment: 1.0)
    monkeypatch.setattr(start, "theirs", lambda environment, python, call: {"fit": 2.0, "train_on_batch": 4.0}[call])
    rows = [dict(zip(start.HEAD, row, strict=True)) for row in start.measured(3, Path("python"))]
    assert [row["seconds"] for row in rows] == ["1.00", "2.00", "4.00"]
    assert [row["ours takes"] for row in rows] == ["", "0.50 of its time", "0.25 of its time"]
    own, missing = start.measured(1, None)
    assert own[:2] == [start.OURS, "1.00"]
    assert missing[:2] == ["Keras", "isn't installed: `--prepare` installs it"]


def test_command_that_comes_to_no_step_ends_the_measurement(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SystemExit, match=r"^error: `-m trainers\.main .*` took no step"):
        start.ours(os.environ, "--gin_param=Trainer.no_such_setting = 1")


@pytest.mark.long
def test_real_command_comes_to_its_first_step():
    assert 0.0 < start.ours(os.environ) < start.MOST_SECONDS


def test_page_has_a_row_for_each_way_to_start():
    rows = rows_in((CHECKOUT / "benchmarks" / "notes" / "performance.md").read_text(), "start")
    assert [row[0] for row in rows if len(row) == len(start.HEAD)] == [
        start.OURS,
        "Keras, `fit`",
        "Keras, `train_on_batch`",
    ]
