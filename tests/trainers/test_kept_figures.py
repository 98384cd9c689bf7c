"""Metrics that are computed for a checkpoint afterwards are kept like the run's own, once."""

import json
import shutil
import subprocess
import sys

import pytest

from core.checkpoint import Manifest, SavedVariable
from tests.commands import CONFIGS, passed, run
from trainers.runs.evaluations_file import differences, is_kept, keep
from trainers.runs.read import read_run

SHORT = ("steps = 20", "chunk_steps = 10", "log_every = 10", "evaluate_every = None", "checkpoint_every = 10")
FLAGS = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", *(f"--gin_param=Trainer.{text}" for text in SHORT)]
NAMED = [
    "--gin_param=Experiment.eval_sources = {'learnt': @learnt/digits()}",
    "--gin_param=learnt/digits.split='train'",
]


def manifest(tmp_path, step=20, sha256="a"):
    return Manifest(tmp_path, step, 0, "", {"w": SavedVariable((), "float32", sha256)}, {})


def test_line_stands_where_the_run_would_have_written_it_and_once(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = ['{"step": 10, "split": "train", "x": 1.0}', '{"step": 20, "split": "eval", "x": 2.0}', '{"step": 30, "sp']
    path.write_text("\n".join(lines))
    keep(path, 10, {"eval": {"x": 1.5}, "eval/a": {"x": float("nan")}})
    first, eval_10, a_10, eval_20 = path.read_text().splitlines()
    assert (first, eval_20) == (lines[0], lines[1])  # the part cut short by a kill is gone
    assert [json.loads(line) for line in (eval_10, a_10)] == [
        {"step": 10, "split": "eval", "x": 1.5},
        {"step": 10, "split": "eval/a", "x": None},
    ]
    before = path.stat()
    keep(path, 10, {"eval": {"x": 1.5}})
    assert path.stat() == before
    keep(path, 20, {"eval": {"x": 3.0}})
    assert [json.loads(line)["x"] for line in path.read_text().splitlines()] == [1.0, 1.5, None, 3.0]


def test_checkpoint_of_the_same_step_with_other_bits_is_another(tmp_path):
    path, one, other = tmp_path / "lines.jsonl", manifest(tmp_path), manifest(tmp_path, sha256="b")
    assert not is_kept(path, one, {"eval"})
    keep(path, 20, {"eval": {"x": 1.0}}, of=one)
    assert is_kept(path, one, {"eval"})
    assert not is_kept(path, one, {"eval", "eval/a"})
    assert not is_kept(path, other, {"eval"})
    keep(path, 20, {"eval": {"x": 2.0}}, of=other)
    assert [is_kept(path, each, {"eval"}) for each in (one, other)] == [False, True]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert run(*FLAGS, "--workdir=run", cwd=folder).returncode == 0
    return folder / "run"


def evaluate(workdir, *flags):
    done = passed(*FLAGS, "--mode=evaluate", f"--workdir={workdir}", *flags, cwd=workdir.parent)
    return done.stdout


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
def test_evaluating_a_finished_run_adds_missing_figures_once(trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / "run")
    *others, last = lines_of(workdir / "metrics.jsonl")
    close = {**last, "loss": last["loss"] + 1e-6}
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*others, close)))
    before = (workdir / "metrics.jsonl").read_bytes()
    assert "Warning" not in evaluate(workdir, *NAMED)
    assert not (workdir / "evaluations.jsonl").exists()
    more = lines_of(workdir / "metrics.jsonl")
    assert b"".join((workdir / "metrics.jsonl").read_bytes().splitlines(True)[:-1]) == before
    assert (more[-1]["step"], more[-1]["split"]) == (20, "eval/learnt")
    other = evaluate(workdir, "--gin_param=test/digits.split = 'train'")
    assert (
        "the metrics aren't stored, because the run has another configuration:\n- test/digits.split = 'test'" in other
    )
    assert lines_of(workdir / "metrics.jsonl") == more


@pytest.mark.long
def test_evaluation_that_differs_leaves_the_line_of_the_run(trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / "run")
    metrics = workdir / "metrics.jsonl"
    *others, last = lines_of(metrics)
    told = {**last, "loss": last["loss"] + 0.25}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in (*others, told)))
    before = metrics.read_bytes()
    assert "Warning: `loss` of `eval` is" in evaluate(workdir)
    assert metrics.read_bytes() == before
    (kept,) = lines_of(workdir / "evaluations.jsonl")
    assert kept["loss"] == last["loss"]
    assert read_run(workdir).figures["eval/loss"].last == (20, told["loss"])
    assert not read_run(workdir).damage


def test_differences_are_infinite_where_one_is_no_number():
    nan, inf = float("nan"), float("inf")
    own, found = {"a": 1.0, "b": 200.0, "c": nan, "d": 1.0}, {"a": 1.5, "b": 201.0, "c": nan, "d": nan, "e": 1.0}
    assert differences(own, found) == {"a": 0.5, "b": 0.005, "c": 0.0, "d": inf}


@pytest.mark.long
def test_figures_of_a_run_at_work_go_into_a_separate_file(trained, tmp_path):
    """Only the holder of the lock writes `metrics.jsonl`; readers see both files as one."""
    workdir = shutil.copytree(trained, tmp_path / "run")
    before = (workdir / "metrics.jsonl").read_bytes()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(workdir / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert "the run is still training" in evaluate(workdir, *NAMED)
        holder.stdin.close()
    assert (workdir / "metrics.jsonl").read_bytes() == before
    found = lines_of(workdir / "evaluations.jsonl")
    assert [(line["step"], line["split"]) for line in found] == [(20, "eval"), (20, "eval/learnt")]
    curves = read_run(workdir).figures
    assert curves["eval/learnt/loss"].last == (20, found[1]["loss"])
    assert not read_run(workdir).damage
    # A run that rolls back past the checkpoint drops its metrics as well.
    shutil.rmtree(workdir / "checkpoints" / "step-000000020")
    assert run(*FLAGS, f"--workdir={workdir}", cwd=tmp_path).returncode == 0
    assert lines_of(workdir / "evaluations.jsonl") == []
    assert (workdir / "metrics.jsonl").read_bytes().splitlines()[-1] == before.splitlines()[-1]
