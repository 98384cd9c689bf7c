"""Tests `python -m tools.browser` without Chromium; `.ci/run` runs the command itself."""

import shutil

from tools.browser.__main__ import main


def test_browser_without_chromium_says_what_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main([]) == 2
    assert "`apt install chromium`" in capsys.readouterr().err
