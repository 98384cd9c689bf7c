"""The step in a loss, by the real command: the same in chunks and after a kill, and refused in a run of new length."""

import json
import signal

import numpy as np
from command_lab import write_task

from core import checkpoint
from tests.commands import refused, run

ROWS = "tf.ones([y.shape[0]])"
TOLD = f"metrics={{'at': {ROWS} * tf.cast(rng.step, tf.float32), 'done': {ROWS} * rng.progress}}"
ANNEALED = f"return Loss(tf.square(y) * (1.0 + rng.progress), {TOLD})"
BY_STEP = "return Loss(tf.square(y) / tf.cast(1 + rng.step, tf.float32))"
SHORT = ("--gin_param=Trainer.log_every = 5", "--gin_param=Trainer.checkpoint_every = 10")


def outcome(workdir):
    saved = checkpoint.newest(workdir / "checkpoints", warn=print)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    told = [(line["step"], line["at"], line["done"]) for line in lines if line["split"] == "train"]
    return {path: variable.sha256 for path, variable in saved.variables.items()}, told


def test_it_is_the_same_in_any_chunks_compiled_and_after_a_kill(tmp_path):
    flag = write_task(tmp_path, loss=ANNEALED)
    chunks = "--gin_param=Trainer.chunk_steps = 5"
    ways = {
        "whole": [chunks],
        "chunks of one": ["--gin_param=Trainer.chunk_steps = 1"],
        "killed": [chunks],
        "compiled": [chunks, "--gin_param=Trainer.compile = True"],
    }
    killed = run(flag, *SHORT, *ways["killed"], "--workdir=killed", "--kill_after_step=15", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    found = {}
    for way, flags in ways.items():
        done = run(flag, *SHORT, *flags, f"--workdir={way}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found[way] = outcome(tmp_path / way)
    expected = [(end, end - 3.0, (end - 3.0) / 20.0) for end in (5, 10, 15, 20)]  # means of five steps each
    for way, (_, told) in found.items():
        np.testing.assert_allclose(told, expected, rtol=1e-6, err_msg=way)
    assert found["whole"] == found["chunks of one"] == found["killed"]


def test_a_run_whose_steps_mean_something_goes_on_with_as_many(tmp_path):
    flag, longer = write_task(tmp_path, loss=ANNEALED), "--gin_param=Trainer.steps = 30"
    assert run(flag, cwd=tmp_path).returncode == 0
    says = ["- Trainer.steps = 20\n+ Trainer.steps = 30", "because phase `net` asks for `rng.progress`"]
    refused(flag, longer, cwd=tmp_path, exit_code=2, says=[*says, "--allow_config_change"])
    done = run(flag, longer, "--allow_config_change", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "going on from step 20" in done.stdout
    assert run(flag, longer, cwd=tmp_path).returncode == 0  # it is that run now


def test_a_step_that_asks_for_its_number_alone_goes_on_for_as_long_as_one_likes(tmp_path):
    flag = write_task(tmp_path, loss=BY_STEP)
    assert run(flag, cwd=tmp_path).returncode == 0
    done = run(flag, "--gin_param=Trainer.steps = 30", cwd=tmp_path)
    assert "going on from step 20" in done.stdout
    # The code may come to ask later: then what the run had before isn't known, and shows.
    write_task(tmp_path, loss=ANNEALED)
    refused(flag, "--gin_param=Trainer.steps = 40", cwd=tmp_path, exit_code=2, says=["+ Trainer.steps = 40"])


def test_one_eager_step_is_told_as_well(tmp_path):
    done = run(write_task(tmp_path, loss=ANNEALED), "--eager", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "at 0, done 0" in done.stdout
