"""`python -m tools.browser` where there is nothing to look with. `.ci/run` runs it where there is."""

import shutil

from tools.browser.__main__ import main


def test_browser_without_chromium_says_what_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main([]) == 2
    assert "`apt install chromium`" in capsys.readouterr().err
