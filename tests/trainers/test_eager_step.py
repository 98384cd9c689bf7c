"""`--eager --step=N` repeats a step of a run, exactly as in the run, and changes no file of it."""

import hashlib
import json
import re
import shutil

import pytest

from tests.commands import CONFIGS, passed, refused
from tests.trainers.command_lab import write_task

TWO = f"--gin_file={CONFIGS / 'runtime/mirrored.gin'}"
LONG = pytest.mark.long
LOCAL = (TWO, "--gin_param=Trainer.local_steps = 5")
PRINTS = """
        if tf.executing_eagerly():
            print("step", int(rng.step), "of", y.shape[0], "rows")
        return Loss(tf.square(y))"""


def bytes_in(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def train(folder, *flags):
    """Returns the flags of a run of 20 steps: a line for each step (or round), checkpoints of steps 10 and 20."""
    every = 5 if LOCAL[1] in flags else 1
    bindings = [f"chunk_steps = {every}", f"log_every = {every}", "checkpoint_every = 10"]
    words = [write_task(folder, loss=PRINTS), *flags, *(f"--gin_param=Trainer.{each}" for each in bindings)]
    passed(*words, "--workdir=run", cwd=folder)
    return [*words, "--workdir=run"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of such a run on one device, and its flags."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(folder)


def figures_of(stdout):
    line = stdout.splitlines()[-1]
    return {name: float(x) for name, x in re.findall(r"(\w+) ([\d.e+-]+)(?:,|$)", line.partition("saved: ")[2])}


@pytest.mark.long
@pytest.mark.parametrize("flags", [pytest.param((), id="one device"), pytest.param((TWO,), id="two", marks=LONG)])
def test_eager_step_has_the_figures_of_the_run_and_changes_no_file(trained, tmp_path, flags):
    folder, words = (tmp_path, train(tmp_path, *flags)) if flags else trained
    before = bytes_in(folder / "run")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    of_step = {line["step"] - 1: line for line in lines if line["split"] == "train"}
    for step in (13,) if flags else (10, 13):
        done = passed(*words, "--eager", f"--step={step}", cwd=folder)
        assert "restored step 10 (`step-000000010`)" in done.stdout
        assert done.stdout.count(f"step {step} of") == (2 if flags else 1)  # each replica calls the step function
        assert f"\nstep {step}, not traced and not saved: loss " in done.stdout
        figures = figures_of(done.stdout)
        assert figures["loss"] == pytest.approx(of_step[step]["loss"], rel=1e-4)
        assert figures["gradient_norm"] == pytest.approx(of_step[step]["gradient_norm"], rel=1e-4)
    assert bytes_in(folder / "run") == before


@pytest.mark.long
def test_local_steps_take_the_round_that_the_step_is_in(tmp_path):
    words = train(tmp_path, *LOCAL)
    done = passed(*words, "--eager", "--step=17", cwd=tmp_path)
    assert "the round of step 17, not traced" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert figures_of(done.stdout)["loss"] == pytest.approx(lines[-1]["loss"], rel=1e-4)


def test_first_step_needs_no_checkpoint_and_no_folder(tmp_path):
    done = passed(write_task(tmp_path, loss=PRINTS), "--eager", "--step=0", "--workdir=new", cwd=tmp_path)
    assert "\nstep 0, not traced and not saved: loss " in done.stdout
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("flags", "exit_code", "says"),
    [
        (["--step=3"], 2, ["`--step` is the step that `--eager` takes"]),
        (["--mode=evaluate", "--step=3"], 2, ["`--step` has no effect with `--mode=evaluate`"]),
        (["--eager", "--step=-1"], 2, ["`--step` is -1", "counted from 0"]),
        (["--eager", "--step=x"], 2, ["`--step` is 'x'"]),
        (["--eager", "--step=0", "--gin_param=Trainer.steps = 0"], 2, ["`Trainer.steps` is 0"]),
        (["--eager", "--step=3"], 5, ["`--step` is 3", "runs/mine/checkpoints", "no checkpoint", "--workdir"]),
    ],
)
def test_unusable_steps_are_refused(tmp_path, flags, exit_code, says):
    refused(write_task(tmp_path), *flags, cwd=tmp_path, exit_code=exit_code, says=says)
    assert not (tmp_path / "runs").exists()


def test_step_beyond_the_run_and_one_before_its_checkpoints(trained):
    folder, words = trained
    refused(*words, "--eager", "--step=20", cwd=folder, exit_code=2, says=["`--step` is 20", "20 steps", "0 to 19"])
    refused(*words, "--eager", "--step=9", cwd=folder, exit_code=5, says=["`--step` is 9", "no checkpoint"])


@pytest.mark.long
def test_step_on_the_way_that_is_not_finite_is_named(trained, tmp_path):
    words = trained[1]
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    exploding = "y *= tf.where(rng.step == 12, float('inf'), 1.0); return Loss(tf.square(y))"
    write_task(tmp_path, loss=exploding)
    before = bytes_in(tmp_path / "run")
    for step in (12, 15):
        refused(*words, "--eager", f"--step={step}", cwd=tmp_path, exit_code=3, says=["step 12 is not finite"])
    assert bytes_in(tmp_path / "run") == before
