"""Each step counts once if workers are killed, stopped and restarted."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.served.lab import Served, counted, counting, figures


def lines_come(workdir, more, run, *, within):
    """Waits up to `within` seconds for more metric lines; returns whether they came."""
    path = workdir / "metrics.jsonl"
    until, count = time.monotonic() + within, lambda: len(figures(workdir)) if path.exists() else 0
    wanted = count() + more
    while count() < wanted and time.monotonic() < until:
        assert not run.done(), f"{run.result().stdout}{run.result().stderr}"
        time.sleep(0.05)
    return count() >= wanted


def wait_for_lines(workdir, more, run):
    assert lines_come(workdir, more, run, within=120.0), "the run hangs"


def stop(served, worker, workdir, run):
    """Stops a worker while the others continue.

    A worker stopped during its push delays the others by a minute: then another moment is tried.
    """
    for _ in range(5):
        served.signal("worker", worker, signal.SIGSTOP)
        if lines_come(workdir, 3, run, within=30.0):
            return
        served.signal("worker", worker, signal.SIGCONT)
        wait_for_lines(workdir, 1, run)
    raise AssertionError(f"no step is taken while worker {worker} is stopped")


@pytest.mark.long
def test_workers_may_be_stopped_or_killed_and_come_again(tmp_path):
    run_folder, bindings = tmp_path / "run", ["Trainer.steps = 2000", "Trainer.checkpoint_every = 100"]
    bindings += ["Trainer.log_every = 10", "parameter_server.overdue = 1.0"]
    with Served(tmp_path, workers=2) as served, ThreadPoolExecutor() as pool:
        run = pool.submit(served.train, *counting(tmp_path, *bindings), timeout=400)
        wait_for_lines(run_folder, 2, run)
        stop(served, 1, run_folder, run)
        served.signal("worker", 1, signal.SIGCONT)
        wait_for_lines(run_folder, 1, run)
        stop(served, 0, run_folder, run)
        served.kill("worker", 0)
        wait_for_lines(run_folder, 2, run)
        served.start("worker", 0)
        done = run.result()
    assert done.returncode == 0, done.stderr
    assert "Warning: worker 0" in done.stdout
    assert counted(run_folder) == {"w": 2000.0, "step": 2000}


@pytest.mark.long
def test_worker_that_restarts_alone_is_not_waited_for_endlessly(tmp_path):
    """TensorFlow admits no worker before all have come."""
    bindings = ["Trainer.steps = 100000", "parameter_server.meeting_deadline = 20.0"]
    with Served(tmp_path, workers=2) as served, ThreadPoolExecutor() as pool:
        run = pool.submit(served.train, *counting(tmp_path, *bindings), timeout=400)
        wait_for_lines(tmp_path / "run", 1, run)
        for index in (1, 0):
            served.kill("worker", index)
        served.start("worker", 0)
        done = run.result()
    assert done.returncode == 6, done.stderr
    assert "worker 0 (127.0.0.1" in done.stdout
    assert "no step was done for 20 s" in done.stderr
    assert "while worker 1 (127.0.0.1" in done.stderr


def trained_by_two(folder, binding):
    """Takes 150 steps, each of which adds one to a weight; returns the end and the metric lines."""
    with Served(folder, workers=2) as served:
        done = served.train(*counting(folder, "Trainer.steps = 150", f"parameter_server.{binding}"))
    assert done.returncode == 0, done.stderr
    return counted(folder / "run"), figures(folder / "run")


@pytest.mark.long
def test_gradients_are_no_older_than_asked_for(tmp_path):
    end, lines = trained_by_two(tmp_path, "max_staleness = 0")
    assert max(line["staleness_max"] for line in lines) == 0.0
    assert sum(line["refused"] for line in lines) > 0.0
    assert end == {"w": 150.0, "step": 150}


@pytest.mark.long
def test_gradients_of_age_two_and_more_are_divided(tmp_path):
    """Nothing bounds the age: a worker may wait for a processor while the other one continues."""
    end, lines = trained_by_two(tmp_path, "divide_by_staleness = True")
    oldest = max(line["staleness_max"] for line in lines)
    assert 150.0 / max(1.0, oldest) <= end["w"] <= 150.0
    assert (end["w"] < 150.0) == (oldest > 1.0)
    assert end["step"] == 150


@pytest.mark.long
@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--gin_param=Trainer.compile = True", "`Trainer.compile`"),
        ("--gin_param=Trainer.reduce_gradients_in = 'bfloat16'", "`Trainer.reduce_gradients_in`"),
        ("--gin_param=Experiment.deterministic = True", "`Experiment.deterministic` is True"),
        ("--eager", "`--eager`"),
        ("--mode=resume_check", "`--mode=resume_check` compares bits"),
    ],
)
def test_setting_that_servers_cannot_do_is_refused(flag, says, tmp_path):
    with Served(tmp_path) as served:
        done = served.train(*counting(tmp_path, "Trainer.steps = 10"), flag)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
