"""Runs looked at while they are at work, runs that an older version has left, and reports that are written at once."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from core import checkpoint
from tests.commands import environment, run
from tests.trainers.command_lab import write_task
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
    def __call__(self, run):
        for name, words in {"runs": [], "report": [f"--out={run.step}.html"]}.items():
            command = [sys.executable, "-m", f"trainers.{name}", str(run.workdir.path), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(done.stdout, done.stderr)
"""


def test_a_run_that_is_at_work_is_looked_at_and_unharmed(tmp_path):
    (tmp_path / "look.py").write_text(LOOK)
    task = write_task(tmp_path)
    (tmp_path / "look.gin").write_text("import look\nTrainer.hooks = [@Look()]\nLook.every = 10\n")
    looked = run(task, "--gin_file=look.gin", "--workdir=looked", cwd=tmp_path)
    assert (looked.returncode, looked.stderr) == (0, "")
    assert re.findall(r"looked +running +(\d+)", looked.stdout) == ["10", "20"]
    assert '<span class="running">running</span>' in (tmp_path / "10.html").read_text()
    alone = run(task, "--workdir=alone", cwd=tmp_path)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert kept(tmp_path / "looked") == kept(tmp_path / "alone")


def kept(workdir):
    saved = checkpoint.newest(workdir / "checkpoints", warn=print)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {path: variable.sha256 for path, variable in saved.variables.items()}, [line["loss"] for line in lines]


def test_a_run_of_an_older_version_is_shown_with_what_it_has(tmp_path, monkeypatch, capsys):
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
    assert "It left no word of it." in page


def test_reports_at_once_into_one_file_leave_one_of_them_whole(tmp_path):
    write_run(tmp_path / "run")
    command = [sys.executable, "-m", "trainers.report", "run"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True)
    alone = (tmp_path / "report.html").read_text()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    began = [subprocess.Popen(command, cwd=tmp_path, env=environment(), **streams) for _ in range(4)]
    assert [(each.communicate(timeout=60)[1], each.returncode) for each in began] == [(b"", 0)] * 4
    assert sorted(os.listdir(tmp_path)) == ["report.html", "run"]
    pages = [re.sub("as of [^<]*", "", page) for page in (alone, (tmp_path / "report.html").read_text())]
    assert pages[0] == pages[1]
