"""`benchmarks.side_by_side`: Tapeloop's program runs, and missing peers are reported."""

import re

import pytest

from benchmarks import environments
from benchmarks.side_by_side import __main__ as side_by_side
from tests.commands import CHECKOUT, run


@pytest.mark.long
def test_program_of_ours_learns_and_a_missing_peer_is_a_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(side_by_side, "_run", lambda words, folder: run(*words[3:], cwd=folder))
    assert side_by_side.main(["--peers", "jax"]) == 0
    said = capsys.readouterr().out
    (accuracy,) = re.findall(r"^tapeloop +\d+ +(\d\.\d+) ", said, re.MULTILINE)
    assert float(accuracy) > side_by_side.LEAST
    assert "jax         isn't installed: `--prepare` installs it" in said


def test_program_that_learns_nothing_fails(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(side_by_side, "ours", lambda folder: (0.1, "why it failed"))
    assert side_by_side.main(["--peers"]) == 1
    assert "why it failed" in capsys.readouterr().out


def test_environment_made_of_something_else_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    assert environments.python_of("jax") is None
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / environments.MADE_OF).write_text("an older jax")
    assert environments.python_of("jax") is None
    (tmp_path / "jax" / environments.MADE_OF).write_text("; ".join(environments.PEERS["jax"]))
    assert environments.python_of("jax") == tmp_path / "jax" / "bin" / "python"


def test_programs_stand_in_the_page():
    page = (CHECKOUT / "docs" / "coming-from.md").read_text()
    for program in side_by_side.programs():
        assert f"<!-- from: benchmarks/side_by_side/{program.name} -->" in page
