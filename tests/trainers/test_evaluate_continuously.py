"""`--mode=evaluate_continuously` evaluates each checkpoint of a run once, in parallel, despite crashes and damage."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from core import checkpoint
from core.errors import ConfigurationError, PeerLostError, PreemptedError
from tests.commands import CONFIGS, environment, fork_server, passed, refused
from tests.trainers.trainer_lab import HELD_OUT, POINTS, make, train
from trainers.evaluation.evaluator import Evaluator
from trainers.modes.evaluate_continuously import BesideARun, how_it_ended
from trainers.process.signals import Preemption
from trainers.runs.read import read_run
from trainers.workdir import Workdir

STEPS = (10, 20, 30, 40)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run's checkpoints, and the metrics of each."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = make(folder, checkpoint_every=10, keep_checkpoints=4)
    train(trainer)
    figures = {}
    for step in STEPS:
        trainer.state.restore(newest_up_to(trainer, step))
        figures[step] = Evaluator(trainer.experiment, HELD_OUT).evaluate()
    return SimpleNamespace(workdir=trainer.workdir, figures=figures)


def newest_up_to(trainer, step):
    return checkpoint.newest(trainer.workdir.checkpoints, warn=pytest.fail, up_to=step)


class World:
    """Changes a run's folder while it is watched: the next event happens at each poll."""

    def __init__(self, trained, tmp_path, **held_out):
        self.trained, self.tmp_path = trained, tmp_path
        self.workdir, self.happens, self.said = Workdir(tmp_path / "run"), [], []
        self.held_out = held_out or {"eval_source": HELD_OUT}
        self.preemption = Preemption()
        self.changes = ""

    def beside(self):
        def trainer():
            return make(self.tmp_path, **self.held_out)

        session = SimpleNamespace(
            workdir=self.workdir, trainer=trainer, preemption=self.preemption, changes=lambda *_: self.changes
        )
        beside = BesideARun(session, sleep=lambda _: self.happens.pop(0)())
        beside.telemetry.note = self.said.append
        return beside

    def follow(self, *happens, timeout=None):
        self.happens = list(happens)
        beside = self.beside()
        beside.follow(timeout)
        assert not self.happens
        return beside

    def begin(self):
        (self.workdir.path / "run.json").write_text("{}")

    def save(self, *steps):
        for step in steps:
            source, target = (w.checkpoints / f"step-{step:09d}" for w in (self.trained.workdir, self.workdir))
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)

    def damage(self, step):
        data = next((self.workdir.checkpoints / f"step-{step:09d}").glob("*.data*"))
        data.write_bytes(data.read_bytes()[:-1] + b"?")

    def remove(self, step):
        shutil.rmtree(self.workdir.checkpoints / f"step-{step:09d}")

    def end(self, code=0, step=40, reason="finished"):
        self.workdir.write_result(step=step, exit_code=code, reason=reason, evaluation={})

    @property
    def lines(self):
        return [json.loads(line) for line in self.workdir.evaluations.read_text().splitlines()]


@pytest.fixture
def world(trained, tmp_path):
    return World(trained, tmp_path)


@pytest.mark.long
def test_checkpoints_are_evaluated_as_they_come_until_the_run_is_over(world):
    world.follow(world.begin, lambda: world.save(10), lambda: world.save(20, 30), lambda: (world.save(40), world.end()))
    assert [(line["step"], line["split"]) for line in world.lines] == [(step, "eval") for step in STEPS]
    for line in world.lines:
        assert {name: line[name] for name in ("loss", "accuracy")} == world.trained.figures[line["step"]]
    assert [text.replace(str(world.workdir.path), "run") for text in world.said] == [
        "waiting for a run to begin in `run`",
        "waiting for the first checkpoint",
        "waiting for a checkpoint after that of step 10",
        "waiting for a checkpoint after that of step 30",
    ]
    assert read_run(world.workdir.path).figures["eval/loss"].steps == STEPS
    assert list((world.workdir.evaluation_events / "eval").glob("events.*"))


@pytest.mark.long
def test_evaluation_started_again_skips_checkpoints_with_figures(world, monkeypatch):
    world.save(10, 20)
    with pytest.raises(IndexError):  # nothing more happens
        world.follow()
    before = world.workdir.evaluations.stat()
    world.end()
    world.save(30)
    evaluated = []
    evaluate = BesideARun.evaluate
    monkeypatch.setattr(BesideARun, "evaluate", lambda self, m: (evaluated.append(m.step), evaluate(self, m)))
    world.follow()
    assert evaluated == [30]
    assert world.workdir.evaluations.stat() != before
    world.held_out = {"eval_source": HELD_OUT, "eval_sources": {"learnt": POINTS}}
    world.remove(10)
    world.follow()
    assert evaluated == [30, 20, 30]
    splits = [(line["step"], line["split"]) for line in world.lines]
    assert splits == [(10, "eval"), (20, "eval"), (20, "eval/learnt"), (30, "eval"), (30, "eval/learnt")]


def test_damaged_replaced_and_vanished_checkpoints_end_nothing(world):
    """A damaged one is named once; a good one that replaces it is evaluated."""
    world.save(10, 20, 30)
    world.damage(20)
    beside = world.beside()
    restore = beside.trainer.state.restore

    def vanishing(manifest):
        if manifest.step == 30:
            world.remove(30)
        return restore(manifest)

    beside.trainer.state.restore = vanishing
    world.happens = [lambda: None, lambda: world.save(20), lambda: (world.save(40), world.end())]
    beside.follow(None)
    damaged = [text for text in world.said if "damaged" in text]
    assert len([text for text in damaged if "step-000000020" in text]) == 1
    assert any("`step-000000030` was removed or replaced" in text for text in world.said)
    assert [line["step"] for line in world.lines] == [10, 20, 40]
    assert world.lines[1]["loss"] == world.trained.figures[20]["loss"]


def test_evaluation_that_a_signal_ends_keeps_nothing(world):
    world.save(10)
    world.held_out = {"eval_sources": {"a": HELD_OUT, "b": HELD_OUT}}
    beside = world.beside()
    evaluate = beside.trainer.evaluations.evaluate

    def interrupted(alive):
        found = evaluate(alive)
        yield next(found)
        world.preemption.signal = signal.SIGTERM
        yield from found

    beside.trainer.evaluations.evaluate = interrupted
    with pytest.raises(PreemptedError, match=r"stopped by SIGTERM; .* Run the same command again") as stopped:
        beside.follow(None)
    assert stopped.value.exit_code == 75
    assert not world.workdir.evaluations.exists()


def test_timeouts_and_other_configurations_end_the_evaluation(world):
    with pytest.raises(PeerLostError, match=r"waited 3 s \(`--timeout`\) for a run to begin in") as lost:
        world.follow(*[lambda: None] * 3, timeout=3)
    assert lost.value.exit_code == 6
    world.begin()
    world.end(75, 10)
    with pytest.raises(PeerLostError, match=r"the first checkpoint; the run has stopped \(stopped and saved"):
        world.follow(lambda: None, timeout=1)
    world.save(10)
    world.changes = "- adamw.beta_1 = 0.9"
    with pytest.raises(ConfigurationError, match=r"belongs to a run with another configuration:\n- adamw.beta_1"):
        world.follow()
    world.held_out = {"eval_sources": {}}
    with pytest.raises(ConfigurationError, match="there is nothing to evaluate on"):
        world.beside()


@pytest.mark.parametrize(
    ("code", "step", "reason", "says"),
    [
        (0, 40, "finished", "finished"),
        (0, 20, "finished", None),  # it was shorter, and is being made longer
        (0, 20, "stopped at step 20: enough", "stopped at step 20: enough"),
        (75, 20, "stopped by SIGTERM", None),
        (6, 20, "a worker was lost", None),
        (3, 20, "not finite", "exit code 3 (not finite)"),
    ],
)
def test_run_is_over_unless_it_will_be_started_again(tmp_path, code, step, reason, says):
    workdir = Workdir(tmp_path)
    assert how_it_ended(workdir, 40) is None
    workdir.write_result(step=step, exit_code=code, reason=reason, evaluation={})
    assert how_it_ended(workdir, 40) == says
    holder = Workdir(tmp_path)
    assert holder.take()
    assert how_it_ended(workdir, 40) is None  # it has been started again, and is setting up
    holder._lock.close()


def test_unusable_timeout_is_refused(tmp_path):
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--mode=evaluate_continuously"]
    refused(*flags, "--timeout=0", cwd=tmp_path, exit_code=2, says=["`--timeout` is 0"])
    refused(*flags[:1], "--timeout=5", cwd=tmp_path, exit_code=2, says=["`--timeout` has no effect"])


SHORT = ("steps = 120", "chunk_steps = 10", "log_every = 20", "evaluate_every = None", "checkpoint_every = 20")
FLAGS = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--workdir=run"]
FLAGS += [f"--gin_param=Trainer.{text}" for text in (*SHORT, "keep_checkpoints = 9")]
FOLLOW = [*FLAGS, "--mode=evaluate_continuously"]


def until(holds):
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def begun(tmp_path, *flags):
    """Begins a command in a fork; returns its pid, and the files of its output."""
    files = tmp_path / "stdout", tmp_path / "stderr"
    for file in files:
        file.touch()
    return fork_server().begin(*flags, cwd=tmp_path, stdout=str(files[0]), stderr=str(files[1])), *files


@pytest.mark.long
def test_killed_stopped_and_restarted_during_a_real_run(tmp_path):
    kept = tmp_path / "run" / "evaluations.jsonl"
    command = [sys.executable, "-m", "trainers.main", *FOLLOW]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as first:
        assert any("waiting for a run to begin" in line for line in first.stdout)
        _, _, error = begun(tmp_path, *FLAGS)
        until(lambda: kept.exists() and kept.read_text())
        first.kill()
    assert fork_server().answer(200) == 0, error.read_text()
    shutil.move(tmp_path / "run" / "result.json", tmp_path)  # as if it continued
    second, output, error = begun(tmp_path, *FOLLOW)
    until(lambda: "waiting for a checkpoint after that of step 120" in output.read_text())
    os.kill(second, signal.SIGTERM)
    assert fork_server().answer(200) == 75
    assert error.read_text().startswith("error: stopped by SIGTERM;")
    shutil.move(tmp_path / "result.json", tmp_path / "run")
    assert "the run has ended: finished" in passed(*FOLLOW, cwd=tmp_path).stdout
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["step"] for line in lines] == [20, 40, 60, 80, 100, 120]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {name: lines[-1][name] for name in result["evaluation"]} == result["evaluation"]
