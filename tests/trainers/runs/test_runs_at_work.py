"""Listing active runs and older versions' runs, and reports that are written at once."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import environment, run
from tests.trainers.command_lab import gin, write_task
from tests.written_runs import write_run
from trainers.report.__main__ import main as report_main
from trainers.runs.__main__ import main as runs_main
from trainers.runs.read import read_run

BEFORE = Path(__file__).parent.parent / "data" / "before_the_moves" / "mlp"
LOOK = """
import subprocess
import sys

import gin

from trainers.hooks import Hook

@gin.configurable
class Look(Hook):
    def files(self, run):
        kinds = (".json", ".jsonl", ".gin", ".index")  # logs and events are written by other threads as well
        return {path: path.read_bytes() for path in run.workdir.path.rglob("*") if path.suffix in kinds}

    def __call__(self, run):
        before = self.files(run)
        for name, words in {"runs": [], "report": [f"--out={run.step}.html"]}.items():
            command = [sys.executable, "-m", f"trainers.{name}", str(run.workdir.path), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(done.stdout, done.stderr)
        assert self.files(run) == before
"""


@pytest.mark.long
def test_run_that_is_at_work_is_looked_at_and_unharmed(tmp_path):
    (tmp_path / "look.py").write_text(LOOK)
    look = gin(tmp_path, "import look\nTrainer.hooks = [@Look()]\nLook.every = 20\n", name="look.gin")
    looked = run(write_task(tmp_path), look, "--workdir=looked", cwd=tmp_path)
    assert (looked.returncode, looked.stderr) == (0, "")
    assert re.findall(r"looked +running +(\d+)", looked.stdout) == ["20"]
    assert '<span class="running">running</span>' in (tmp_path / "20.html").read_text()


def test_run_of_an_older_version_is_shown_with_what_it_has(tmp_path, monkeypatch, capsys):
    shutil.copytree(BEFORE, tmp_path / "before")
    monkeypatch.chdir(tmp_path)
    found = read_run(Path("before"))
    assert (found.state, found.step, found.steps, found.damage) == ("finished", 10, None, ())
    assert runs_main(["before"]) == 0
    assert report_main(["before"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"before +finished +10 ", out)
    page = Path("report.html").read_text()
    assert "loss by step" in page
    assert "Not recorded." in page


@pytest.mark.long
def test_reports_at_once_into_one_file_leave_one_of_them_whole(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    command = [sys.executable, "-m", "trainers.report", "run"]
    monkeypatch.chdir(tmp_path)
    assert report_main(["run"]) == 0
    alone = (tmp_path / "report.html").read_text()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    began = [subprocess.Popen(command, cwd=tmp_path, env=environment(), **streams) for _ in range(2)]
    assert [(each.communicate(timeout=60)[1], each.returncode) for each in began] == [(b"", 0)] * 2
    assert sorted(os.listdir(tmp_path)) == ["report.html", "run"]
    pages = [re.sub("as of [^<]*", "", page) for page in (alone, (tmp_path / "report.html").read_text())]
    assert pages[0] == pages[1]
