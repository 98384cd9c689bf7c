"""`python -m trainers.sweep` and the real runs that it starts, as forks."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import optuna
import pytest

from tests import ports
from tests.commands import CONFIGS, environment, fork_server, passed
from tests.trainers.launch.launch_lab import planted
from tests.trainers.sweep.sweep_lab import LINEAR, ran, study
from trainers.runs.read import read_run
from trainers.sweep.__main__ import main
from trainers.workdir import is_locked

RATE = "--space=sgd.learning_rate=log(1e-2, 1)"
STEPS = [f"--gin_param=Trainer.{x}" for x in ("steps = 100", "log_every = 10", "evaluate_every = 100")]


def command(cwd, *words):
    return subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.long
def test_stopped_sweep_resumes_and_ends_as_its_runs_do_alone(python, forks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    slow = planted(tmp_path, "os.path.exists('go') or time.sleep(1.0)", every=10)
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


def wait_for(condition):
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.long
def test_killed_search_resumes_its_trial_from_the_checkpoint(tmp_path):
    slow = planted(tmp_path, "os.path.exists('go') or time.sleep(1.0)", every=10)
    flags = [LINEAR, slow, *STEPS, "--gin_param=Trainer.checkpoint_every = 10"]
    search = [RATE, "--over=seed=[0, 1]", "--trials=1", "--figure=eval/loss", "--", *flags, "--workdir=s"]
    forks = {"command": "trainers.sweep", "before": {"module": "tests.forked_launch", "arguments": {}}, "cwd": tmp_path}
    killed = fork_server().begin(*search, **forks, stdout=os.devnull, stderr=os.devnull)
    wait_for(lambda: list((tmp_path / "s").glob("trial=0,seed=0/checkpoints/step-*")))
    os.kill(killed, signal.SIGKILL)
    assert fork_server().answer() == -signal.SIGKILL
    wait_for(lambda: not is_locked(tmp_path / "s" / "trial=0,seed=0" / ".lock"))
    (tmp_path / "go").touch()
    done = fork_server().run(*search, **forks, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in (tmp_path / "s" / "output" / "trial=0,seed=0.log").read_text()
    first, second = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/s/study.db").trials
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    params = [f"--gin_param=sgd.learning_rate = {second.params['sgd.learning_rate']!r}", "--workdir=alone"]
    passed(*flags, *params, "--gin_param=Experiment.seed = 0", cwd=tmp_path)
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("alone", "s/trial=0,seed=0")]
    assert results[0] == results[1]
    assert second.user_attrs["values"]["0"] == results[0]["evaluation"]["loss"]


@pytest.mark.long
def test_two_processes_share_the_trials_of_a_study(python, tmp_path):
    flags = [LINEAR, "--gin_param=Trainer.steps = 20", "--gin_param=Trainer.log_every = 10"]
    storage = f"--storage=sqlite:///{tmp_path}/shared.db"
    search = [RATE, "--trials=4", "--figure=eval/loss", storage, "--", *flags]
    processes = [
        subprocess.Popen(
            [*python, "-m", "trainers.sweep", *search, f"--workdir={machine}/s"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for machine in ("one", "other")
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    trials = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/shared.db").trials
    assert 4 <= len(trials) <= 5  # both may begin the last one
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert len({trial.user_attrs["worker"] for trial in trials}) == 2
    folders = [path.name for machine in ("one", "other") for path in (tmp_path / machine / "s").glob("trial=*")]
    assert sorted(folders) == [f"trial={trial.number}" for trial in trials]


@pytest.mark.long
def test_pruned_run_is_stopped_and_leaves_a_checkpoint(forks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    slow = planted(tmp_path, "time.sleep(0.2)", every=10)
    rest = [slow, *STEPS, "--gin_param=Trainer.evaluate_every = 10"]
    ran(study(RATE, "--pruner=median", "--trials=5", rest=rest), lambda params: [1e-6, 1e-6])
    words = [RATE, "--pruner=median", "--trials=6", "--figure=eval/loss", "--", LINEAR, *rest, "--workdir=s"]
    assert main(words) == 0
    assert "6 of 6 trials  trial=5: pruned at step 10 (" in capsys.readouterr().out
    run = read_run(tmp_path / "s" / "trial=5")
    assert (run.state, run.exit_code) == ("stopped", 75)
    assert list((run.path / "checkpoints").glob("step-*"))
