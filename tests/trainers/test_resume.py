"""Runs that are killed, stopped and restarted with the command end as one that never stopped."""

import json
import os
import signal
import time

import pytest

from core import checkpoint
from tests.commands import CONFIGS, fork_server, passed, run
from tests.trainers.resume_lab import manifest_of, outcome
from trainers.modes import resume_check

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
FLAGS = (
    "--gin_param=Trainer.steps = 60",
    "--gin_param=Trainer.chunk_steps = 5",
    "--gin_param=Trainer.log_every = 15",
    "--gin_param=Trainer.checkpoint_every = 10",
    "--gin_param=Trainer.evaluate_every = 20",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the workdir of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    done = run(LINEAR, *FLAGS, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "runs" / "digits_linear"


def test_killed_twice_and_started_again(whole, tmp_path):
    folder = "kill [e]d*?\\"  # to TensorFlow, a pattern
    killed_in = f"--workdir={folder}"
    for after in (15, 45):  # once in the middle of a metric line, once between a checkpoint and the next
        killed = run(LINEAR, *FLAGS, killed_in, "--kill_after_step", str(after), cwd=tmp_path)
        assert killed.returncode == -signal.SIGKILL
    done = passed(LINEAR, *FLAGS, killed_in, cwd=tmp_path)
    assert "resuming from step 40" in done.stdout
    assert outcome(tmp_path / folder) == outcome(whole)


def test_sigterm_saves_and_asks_to_be_run_again(tmp_path):
    streams = [tmp_path / name for name in ("stdout", "stderr")]
    for path in streams:
        path.touch()
    flags = (*FLAGS, "--gin_param=Trainer.steps = 1000000", "--workdir=stopped")
    pid = fork_server().begin(LINEAR, *flags, cwd=tmp_path, stdout=str(streams[0]), stderr=str(streams[1]))
    metrics, deadline = tmp_path / "stopped" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(pid, signal.SIGTERM)
    assert fork_server().answer(60) == 75
    assert "SIGTERM" in streams[1].read_text()
    result = json.loads((tmp_path / "stopped" / "result.json").read_text())
    assert result["exit_code"] == 75
    assert checkpoint.newest(tmp_path / "stopped" / "checkpoints", warn=print).step == result["step"]


@pytest.mark.long
def test_workdir_holds_the_documented_files_and_its_configuration_trains_the_same(whole, tmp_path):
    for name in ("config/given.gin", "config/operative.gin", "metrics.jsonl", "run.json", "result.json"):
        assert (whole / name).stat().st_size, name
    assert list(whole.glob("events/train/events.out.tfevents.*"))
    manifest = manifest_of(whole, 60)
    assert {"step", "examples", "files", "variables", "versions", "config_hash"} <= set(manifest)
    assert manifest["examples"] == 60 * 64
    result = json.loads((whole / "result.json").read_text())
    assert (result["step"], result["exit_code"], result["reason"]) == (60, 0, "finished")
    evaluated = passed(LINEAR, *FLAGS, f"--workdir={whole}", "--mode=evaluate", cwd=tmp_path)
    assert f"{result['evaluation']['accuracy']:.4f}" in evaluated.stdout
    passed(f"--gin_file={whole / 'config' / 'operative.gin'}", "--workdir=again", cwd=tmp_path)
    assert outcome(tmp_path / "again") == outcome(whole)


WATCH = """
import gin
from trainers.hooks import Hook

@gin.configurable
class Resident(Hook):
    def __call__(self, trainer):
        pages = int(open("/proc/self/statm").read().split()[1])
        with open("resident.txt", "a") as file:
            file.write(f"{pages * 4096 / 1e6}\\n")
"""


@pytest.mark.long
def test_a_long_run_does_not_grow(tmp_path):
    (tmp_path / "watch.py").write_text(WATCH)
    (tmp_path / "watch.gin").write_text("import watch\nTrainer.hooks = [@Resident()]\nResident.every = 250\n")
    # Each of a hundred evaluations leaves its prefetching input behind.
    settings = ("steps = 5000", "log_every = 250", "evaluate_every = 50", "checkpoint_every = 1000")
    flags = [f"--gin_param=Trainer.{text}" for text in settings]
    passed(LINEAR, "--gin_file=watch.gin", *flags, cwd=tmp_path)
    megabytes = [float(line) for line in (tmp_path / "resident.txt").read_text().splitlines()]
    assert len(megabytes) == 20
    assert megabytes[-1] - megabytes[4] < 25.0, megabytes  # checkpoints leave some of their buffers behind, once


def test_evaluation_without_a_checkpoint_is_refused(tmp_path):
    done = run(LINEAR, "--mode=evaluate", cwd=tmp_path)
    assert done.returncode == 5
    assert "there is no checkpoint" in done.stderr


def resume_checked(*flags, cwd):
    """Runs the command in a fork, which forks the runs that it compares."""
    forks = {"module": "tests.forked_resume_check", "arguments": {}}
    return fork_server().run(*flags, "--mode=resume_check", cwd=cwd, timeout=300, before=forks)


COUNTING = """
import itertools

import gin
import numpy as np
import tensorflow as tf

from models.classifiers import LinearClassifier

COUNT = itertools.count(1)


@gin.configurable
class Counting(LinearClassifier):
    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        if rng is None:
            return loss
        n = tf.numpy_function(lambda: np.float32(next(COUNT)), [], tf.float32)
        return loss._replace(per_example=loss.per_example / tf.ensure_shape(n, []))
"""


def test_resume_check_that_fails_names_the_values_of_python(tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    digits = (CONFIGS / "digits_linear.gin").read_text().replace("LinearClassifier", "Counting")
    (tmp_path / "counting.gin").write_text(f"import counting\n{digits}")
    done = resume_checked("--gin_file=counting.gin", "--gin_param=Trainer.chunk_steps = 2", cwd=tmp_path)
    assert done.returncode == 5
    assert "likely because phase `net` calls Python at counting.py:19 (`n = tf.numpy_function(" in done.stderr
    assert "metric line" not in done.stderr


def test_resumed_run_that_differs_is_recognised_by_its_objects_or_its_values():
    differences = [f"variable `{i}`" for i in range(12)]
    note = "phase `net` calls Python at step.py:3 (`x = tf.py_function(f, [], x.dtype)`)"
    printed = f"resuming from step 80\n{note}: no checkpoint keeps what that remembers\ntraced in 1.0 s\n"
    told = resume_check.another_run(differences, printed)
    assert told.startswith(
        f"the resumed run is another run, likely because {note}: what Python remembers, no checkpoint"
    )
    assert told.endswith("In all, 12 values and lines differ, the first of them variable `0`.")
    for on in ({}, {"gpus": True, "repeats": True}, {"gpus": False, "repeats": False}):
        assert resume_check.another_run(differences, "traced in 1.0 s", **on).endswith("`8`; variable `9`")
    on_gpu = resume_check.another_run(differences, "traced in 1.0 s", gpus=True, repeats=False)
    assert (
        "Bind `Experiment.deterministic = True`. 12 values and lines differ, the first of them variable `0`" in on_gpu
    )


REMEMBERING = """
import gin

from models.classifiers.linear import LinearClassifier
from models.translation.image_pool import ImagePool


@gin.configurable
class Remembering(LinearClassifier):
    def __init__(self, *, rng, optimizer=gin.REQUIRED):
        super().__init__(rng=rng, in_size=64, optimizer=optimizer)
        self.pool = ImagePool(5, [8, 8, 1])

    def phases(self):
        return [self.pool.phase("pool", "image", "shown"), *super().phases()]

    def loss(self, batch, rng):
        shown = batch["image" if rng is None else "shown"]
        return super().loss({"image": shown, "label": batch["label"]}, rng)
"""
# Two images a step: the pool of five is full after three steps, and then returns old ones.
REMEMBERED = """
import remembering
Experiment.task = @Remembering
Experiment.train_source = @digits()
Experiment.eval_source = @test/digits()
test/digits.split = "test"
Remembering.optimizer = @chain()
chain.transforms = [@adam(), @ema()]
adam.learning_rate = 0.01
Trainer.steps = 100
Trainer.global_batch_size = 2
Trainer.chunk_steps = 2
Trainer.hooks = [@EarlyStopping(), @Track()]
Track.to = "mlflow"
Track.url = "sqlite:///trials.db"
Trainer.keep_best = "max accuracy"
Trainer.keep_every = 1000
EarlyStopping.figure = "max accuracy"
EarlyStopping.every = 500
"""


@pytest.mark.long
def test_resume_check(tmp_path):
    """It holds with a history of images, averages, more checkpoints, an early stop and a tracker that gets no trial."""
    (tmp_path / "remembering.py").write_text(REMEMBERING)
    (tmp_path / "remembering.gin").write_text(REMEMBERED)
    files = ["--gin_file=remembering.gin", f"--gin_file={CONFIGS / 'runtime' / 'mirrored.gin'}"]
    done = resume_checked(*files, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "resume is exact" in done.stdout
    assert not (tmp_path / "trials.db").exists()  # no tracker gets the runs that are compared
