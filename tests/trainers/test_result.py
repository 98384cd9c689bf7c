"""The metrics in `result.json`: the same if the run was killed."""

import json
import shutil

import pytest

from tests.commands import CONFIGS, passed, run
from tests.trainers.resume_lab import killed_after
from tests.trainers.trainer_lab import HELD_OUT, Crash, idle, make, newest, train
from trainers.hooks import Hook
from trainers.lifecycle import train_to_end

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"

SKETCH = """
import gin
from trainers.hooks import Hook

@gin.configurable
class Sketch(Hook):
    def __call__(self, run):
        run.report("sketch", {"third": run.step / 3})
"""


@pytest.mark.long
def test_killed_between_the_last_checkpoint_and_the_result(tmp_path):
    """Every metric is there, even of a hook that reported much earlier; leftovers of the last save are removed."""
    (tmp_path / "sketch.py").write_text(SKETCH)
    (tmp_path / "sketch.gin").write_text("import sketch\nTrainer.hooks = [@Sketch()]\nSketch.every = 10\n")
    steps = ("steps = 20", "chunk_steps = 5", "log_every = 10", "evaluate_every = 10", "checkpoint_every = 10")
    flags = [LINEAR, "--gin_file=sketch.gin", *(f"--gin_param=Trainer.{x}" for x in (*steps, "keep_checkpoints = 1"))]
    assert run(*flags, "--workdir=whole", cwd=tmp_path).returncode == 0
    checkpoints = killed_after(tmp_path / "whole", 20, tmp_path) / "checkpoints"
    for name in ("step-000000010", ".tmp-removed-step-000000005"):  # the kill came before they were removed
        shutil.copytree(checkpoints / "step-000000020", checkpoints / name)
    again = passed(*flags, "--workdir=killed", cwd=tmp_path)
    assert "already finished" in again.stdout
    whole, killed = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed"))
    assert killed == whole
    assert whole["evaluation"]["sketch/third"] == 20 / 3
    assert [path.name for path in checkpoints.iterdir()] == ["step-000000020"]


def loop(tmp_path, **settings):
    """Returns a trainer of which only the evaluation is traced."""
    return idle(make(tmp_path, eval_source=HELD_OUT, **{"checkpoint_every": 10, "log_every": None, **settings}))


class Report(Hook):
    def check(self, run):
        self.parts = 3

    def __call__(self, run):
        run.report("own", {"third": run.step / self.parts, "no_number": float("nan")})


class StopAt(Hook):
    def __call__(self, run):
        run.stop("enough")


@pytest.mark.long
def test_metrics_from_before_a_crash_are_restored(tmp_path):
    once = Report(30)
    once.due = lambda step, steps: step == 10
    settings = {"hooks": [once, Crash(30)], "evaluate_every": 10}
    trainer = loop(tmp_path, **settings)
    with pytest.raises(RuntimeError, match="crash"):
        train(trainer)
    resumed = loop(tmp_path, **settings)
    resumed.state.restore(newest(trainer))
    assert resumed.step == 20
    assert resumed.evaluation["own/third"] == 10 / 3
    assert resumed.evaluation.keys() == trainer.evaluation.keys() > {"own/third", "loss"}
    other = loop(tmp_path, evaluate_every=10)
    other.state.restore(newest(trainer))
    assert other.evaluation == {}  # they would stay for ever, for an old step


def test_run_made_shorter_reports_the_metrics_of_its_end(tmp_path):
    trainer = loop(tmp_path, hooks=[Report()])
    train(trainer)
    assert trainer.state.ending.complete
    for path in trainer.workdir.checkpoints.glob("*40"):
        path.rename(path.with_name("later"))
    shorter = loop(tmp_path, hooks=[Report()], steps=30)
    shorter.state.restore(newest(trainer))
    assert (shorter.state.finished, shorter.state.ending.complete, shorter.evaluation) == (True, False, {})
    train_to_end.report_the_end(shorter)
    assert shorter.evaluation.keys() == trainer.evaluation.keys()
    assert shorter.evaluation["own/third"] == 10


class Killed(BaseException):
    """Ends the process as far as the trainer can tell."""


def test_run_killed_right_after_the_checkpoint_of_a_stop_stays_stopped(tmp_path):
    """A run that continues never saves a checkpoint at that step."""
    trainer = loop(tmp_path, hooks=[StopAt(20)])
    save = trainer.state.save

    def save_and_die(**options):
        save(**options)
        if trainer.step == 20:
            raise Killed

    trainer.state.save = save_and_die
    with pytest.raises(Killed):
        train(trainer)
    resumed = loop(tmp_path, hooks=[StopAt(20)])
    resumed.state.restore(newest(trainer))
    assert (resumed.step, resumed.state.ending.stopped) == (20, "enough")
    assert resumed.state.ending.complete
