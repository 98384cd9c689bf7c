"""`python -m trainers.sweep` as a process, and the real runs that it starts."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests import ports
from tests.commands import CONFIGS, environment, run
from trainers.runs.read import read_run
from trainers.workdir import is_locked

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"


def sweep(*words, cwd, timeout=300):
    command = [sys.executable, "-m", "trainers.sweep", *words]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


STEPS = ["--gin_param=Trainer.steps = 30000", "--gin_param=Trainer.evaluate_every = 10000"]


@pytest.mark.long
def test_stopped_sweep_resumes_and_ends_as_its_runs_do_alone(tmp_path):
    words = ["--over=seed = [0, 1, 2]", "--at_once=2", "--", LINEAR, *STEPS]
    began = subprocess.Popen(
        [sys.executable, "-m", "trainers.sweep", *words, "--workdir=s"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not list((tmp_path / "s").glob("*/metrics.jsonl")):
        assert began.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    began.send_signal(signal.SIGTERM)
    out, err = began.communicate(timeout=120)
    assert began.returncode == 75, (out, err)
    assert "error: stopped by SIGTERM. The same command resumes the sweep." in err
    runs = [read_run(path) for path in (tmp_path / "s").glob("seed*")]
    assert {run.state for run in runs} <= {"stopped", "never began"}
    assert "stopped" in {run.state for run in runs}
    assert not any(is_locked(run.path / ".lock") for run in runs)
    assert len(runs) == 2

    done = sweep(*words, "--workdir=s", cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "3 of 3  seed=" in done.stdout
    for seed in (0, 2):  # one that was stopped, and one that hadn't begun
        params = [f"--gin_param=Experiment.seed = {seed}", f"--workdir=alone/{seed}"]
        assert run(LINEAR, *STEPS, *params, cwd=tmp_path).returncode == 0
        results = [tmp_path / folder / "result.json" for folder in (f"alone/{seed}", f"s/seed={seed}")]
        alone, swept = (json.loads(path.read_text()) for path in results)
        assert alone == swept
    again = sweep(*words, "--workdir=s", cwd=tmp_path)
    assert again.returncode == 0
    assert "3 runs in `s`: 3 finished before" in again.stdout
    assert again.stdout.splitlines()[1:] == done.stdout.splitlines()[4:]


@pytest.mark.long
def test_run_that_fails_is_named_and_the_others_continue(tmp_path):
    steps = ["--gin_param=Trainer.steps = 20", "--gin_param=Trainer.log_every = 10"]
    done = sweep("--over=sgd.learning_rate = [1e38, 0.1]", "--", LINEAR, *steps, cwd=tmp_path)
    assert done.returncode == 3, (done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert "1 of 2  learning_rate=1e+38: failed (3: not finite): " in lines[1]
    assert (
        lines[1]
        .partition("Its output is in `")[2]
        .startswith("runs/digits_linear-sweep/output/learning_rate=1e+38.log`")
    )
    assert "2 of 2  learning_rate=0.1: finished" in lines[2]
    assert [line.split()[:2] for line in lines[-2:]] == [["1e+38", "0"], ["0.1", "1"]]


@pytest.mark.long
def test_clusters_are_swept_over_like_single_processes(tmp_path):
    flags = ["--gin_param=Trainer.steps = 20", "--workdir=s"]
    cluster = ["--workers=2", *ports.flags(), "--", LINEAR, f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}"]
    done = sweep("--over=sgd.learning_rate = [0.2]", "--", *cluster, *flags, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "1 of 1  learning_rate=0.2: finished" in done.stdout
    found = read_run(tmp_path / "s" / "learning_rate=0.2")
    assert (found.state, found.step) == ("finished", 20)
    assert "/job:worker/replica:0/task:1/" in str(found.record["devices"])
