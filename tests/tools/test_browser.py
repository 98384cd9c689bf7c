"""Tests `python -m tools.browser` without Chromium; `.ci/run` runs the command itself."""

import shutil

from tests import commands
from tools.browser import board
from tools.browser.__main__ import main


def test_browser_without_chromium_says_what_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main([]) == 2
    assert "`apt install chromium`" in capsys.readouterr().err


class _Restless:
    """A page that shows another value each time."""

    def __init__(self):
        self.shown = 0

    def goto(self, address):
        pass

    def evaluate(self, expression):
        self.shown += 1
        return self.shown

    def wait_for_timeout(self, milliseconds):
        pass


def test_a_page_that_never_stops_changing_is_a_fault(monkeypatch):
    monkeypatch.setattr(board, "CHANGE_SECONDS", 0.05)
    assert board.see(_Restless(), "address", "cards", lambda found: ["is wrong"]) == [
        "is wrong",
        "TensorBoard still changes its cards after 0.05 s",
    ]


def test_a_step_that_never_ends_ends_the_command_with_its_place():
    text = "import time; from tools.browser import progress as p; p.STEP_SECONDS = 1; p.progress('x'); time.sleep(60)"
    done = commands.python("-c", text, cwd=commands.CHECKOUT)
    assert done.returncode == 1
    assert "s: x" in done.stdout
    assert 'File "<string>", line 1' in done.stderr
