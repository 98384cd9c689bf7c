"""`python -m trainers.sweep` and the real runs that it starts, as forks."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import ports
from tests.commands import CONFIGS, environment
from tests.trainers.launch.launch_lab import planted
from trainers.runs.read import read_run
from trainers.sweep.__main__ import main
from trainers.workdir import is_locked

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
STEPS = [f"--gin_param=Trainer.{x}" for x in ("steps = 400", "log_every = 10", "evaluate_every = 200")]


def command(cwd, *words):
    return subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.long
def test_stopped_sweep_resumes_and_ends_as_its_runs_do_alone(python, forks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    slow = planted(tmp_path, "os.path.exists('go') or time.sleep(0.2)", every=10)
    words = ["--over=seed = [0, 1, 2]", "--at_once=2", "--", LINEAR, slow, *STEPS]

    def stop():
        until = time.monotonic() + 300
        while len(list((tmp_path / "s").glob("*/metrics.jsonl"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert main([*words, "--workdir=s"]) == 75
    thread.join()
    assert "error: stopped by SIGTERM. The same command resumes the sweep." in capsys.readouterr().err
    runs = [read_run(path) for path in (tmp_path / "s").glob("seed*")]
    assert [run.state for run in runs] == ["stopped"] * 2
    assert not any(is_locked(run.path / ".lock") for run in runs)

    (tmp_path / "go").touch()
    assert main([*words, "--workdir=s"]) == 0
    said = capsys.readouterr().out
    assert "3 of 3  seed=" in said
    for seed in (0, 2):  # one that was stopped, and one that hadn't begun
        params = [f"--gin_param=Experiment.seed = {seed}", f"--workdir=alone/{seed}"]
        done = command(tmp_path, *python, "-m", "trainers.main", LINEAR, slow, *STEPS, *params)
        assert done.returncode == 0, done.stderr
        results = [tmp_path / folder / "result.json" for folder in (f"alone/{seed}", f"s/seed={seed}")]
        alone, swept = (json.loads(path.read_text()) for path in results)
        assert alone == swept
    monkeypatch.undo()
    again = command(tmp_path, sys.executable, "-m", "trainers.sweep", *words, "--workdir=s")
    assert again.returncode == 0, again.stderr
    assert "3 runs in `s`: 3 finished before" in again.stdout
    assert again.stdout.splitlines()[1:] == said.splitlines()[4:]


@pytest.mark.long
def test_run_that_fails_is_named_and_the_others_continue(forks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    steps = ["--gin_param=Trainer.steps = 20", "--gin_param=Trainer.log_every = 10"]
    assert main(["--over=sgd.learning_rate = [1e38, 0.1]", "--", LINEAR, *steps]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert "1 of 2  learning_rate=1e+38: failed (3: not finite): " in lines[1]
    assert (
        lines[1]
        .partition("Its output is in `")[2]
        .startswith("runs/digits_linear-sweep/output/learning_rate=1e+38.log`")
    )
    assert "2 of 2  learning_rate=0.1: finished" in lines[2]
    assert [line.split()[:2] for line in lines[-2:]] == [["1e+38", "0"], ["0.1", "1"]]


@pytest.mark.long
def test_clusters_are_swept_over_like_single_processes(forks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--gin_param=Trainer.steps = 20", "--workdir=s"]
    cluster = ["--workers=2", *ports.flags(), "--", LINEAR, f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}"]
    assert main(["--over=sgd.learning_rate = [0.2]", "--", *cluster, *flags]) == 0
    assert "1 of 1  learning_rate=0.2: finished" in capsys.readouterr().out
    found = read_run(tmp_path / "s" / "learning_rate=0.2")
    assert (found.state, found.step) == ("finished", 20)
    assert "/job:worker/replica:0/task:1/" in str(found.record["devices"])
