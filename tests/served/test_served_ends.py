"""Asynchronous runs end and resume after signals to the chief, lost workers and non-finite losses."""

import json
import signal
import socket
import time

import pytest

from tests.served.lab import Served, counted, counting, figures
from tests.trainers.launch.launch_lab import alive

SIGNALS = """
import os
import signal
import gin
from trainers.hooks import Hook

@gin.configurable
class Signals(Hook):
    def __call__(self, run):
        assert run.step == run.steps or run.figures()["loss"] < 0.0  # at the end the line has been written
        if run.step in (20, 40):
            os.kill(os.getpid(), signal.SIGUSR1 if run.step == 20 else signal.SIGTERM)
"""
SPOILT = """
import gin
import tensorflow as tf
from count import Count
from core.task import Loss

@gin.configurable
class Spoilt(Count):
    def loss(self, batch, rng):
        w = tf.where(rng.step == 30, float("nan"), self.net.w)
        return Loss(tf.fill([batch["x"].shape[0]], -w))
"""


def saved(workdir):
    return sorted(int(path.name.removeprefix("step-")) for path in (workdir / "checkpoints").glob("step-*"))


@pytest.mark.long
def test_chief_saves_or_leaves_on_signals_and_its_metric_line_loses_no_step(tmp_path):
    (tmp_path / "signals.py").write_text(SIGNALS)
    hooks = ["Trainer.hooks = [@Signals()]", "Signals.every = 5", "Trainer.steps = 80"]
    arguments = [*counting(tmp_path, *hooks), "--gin_param=import signals"]
    with Served(tmp_path) as served:
        done = served.train(*arguments, "--gin_param=Trainer.chunk_steps = 5", timeout=300)
    assert done.returncode == 75, done.stderr
    assert saved(tmp_path / "run") == [25, 45]  # where the chunk ends during which the signal arrives
    with Served(tmp_path) as served:
        done = served.train(*arguments, "--gin_param=Trainer.chunk_steps = 1", timeout=300)
    assert done.returncode == 0, done.stderr
    assert counted(tmp_path / "run") == {"w": 80.0, "step": 80}
    [line] = figures(tmp_path / "run")
    assert (line["step"], line["loss"]) == (80, -39.5)  # the mean over all steps, those before the kill included


@pytest.mark.long
def test_worker_that_never_comes_is_named(tmp_path):
    bindings = ["Trainer.steps = 10", "parameter_server.meeting_deadline = 15.0"]
    with Served(tmp_path, workers=2) as served:
        served.signal("worker", 1, signal.SIGKILL)
        done = served.train(*counting(tmp_path, *bindings))
        came, missing = served.cluster["worker"]
    assert done.returncode == 6, done.stdout
    assert f"worker 1 ({missing}) didn't come within 15 s" in done.stderr
    assert came not in done.stderr


@pytest.mark.long
def test_chief_whose_port_is_taken_says_so_and_dismisses_all(tmp_path):
    with Served(tmp_path) as served:
        host, port = served.cluster["chief"][0].split(":")
        with socket.create_server((host, int(port))):
            done = served.train(*counting(tmp_path, "Trainer.steps = 10"))
        until = time.monotonic() + 60
        while any(alive(pid) for pid in served.pids.values()):
            assert time.monotonic() < until
            time.sleep(0.1)
    assert done.returncode == 2, done.stdout
    assert f"the chief ({host}:{port}) can't listen at port {port}: another process has it" in done.stderr


def test_loss_that_is_not_finite_ends_the_run_and_nothing_after_it_is_written(tmp_path):
    arguments = counting(tmp_path, "Experiment.task = @Spoilt", "Trainer.steps = 100", "Trainer.checkpoint_every = 20")
    (tmp_path / "spoilt.py").write_text(SPOILT)
    with Served(tmp_path, workers=2) as served:
        done = served.train(*arguments, "--gin_param=import spoilt", timeout=300)
    assert done.returncode == 3, done.stderr
    assert "step 30" in done.stderr
    assert saved(tmp_path / "run") == [20]
    assert counted(tmp_path / "run") == {"w": 20.0, "step": 20}
    assert json.loads((tmp_path / "run" / "result.json").read_text())["exit_code"] == 3
