"""What a run reports: the same in `result.json`, whenever it was killed."""

import json
import shutil
import signal

import pytest

from core.data import digits
from tests.commands import CONFIGS, run
from tests.trainers.trainer_lab import Crash, make, newest, train
from trainers.hooks import Hook

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"

KILL = """
import os, signal
import gin
from trainers.hooks import Hook
from trainers.workdir import Workdir

@gin.configurable
class Sketch(Hook):
    def __call__(self, run):
        run.report("sketch", {"third": run.step / 3})

if os.path.exists("kill"):
    os.unlink("kill")
    def write_result(self, **_):
        os.kill(os.getpid(), signal.SIGKILL)
    Workdir.write_result = write_result
"""


def test_killed_between_the_last_checkpoint_and_the_result(tmp_path):
    """Every figure is there, of a hook that reported long before the end as well; what the last save left goes."""
    (tmp_path / "kill_hook.py").write_text(KILL)
    (tmp_path / "kill.gin").write_text("import kill_hook\nTrainer.hooks = [@Sketch()]\nSketch.every = 10\n")
    steps = (
        "steps = 20",
        "chunk_steps = 5",
        "log_every = 10",
        "evaluate_every = 10",
        "checkpoint_every = 10",
        "keep_checkpoints = 1",
    )
    flags = [LINEAR, "--gin_file=kill.gin", *(f"--gin_param=Trainer.{text}" for text in steps)]
    assert run(*flags, "--workdir=whole", cwd=tmp_path).returncode == 0
    (tmp_path / "kill").touch()
    assert run(*flags, "--workdir=killed", cwd=tmp_path).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    checkpoints = tmp_path / "killed" / "checkpoints"
    for name in ("step-000000010", ".tmp-removed-step-000000005"):  # the kill came before they were removed
        shutil.copytree(checkpoints / "step-000000020", checkpoints / name)
    again = run(*flags, "--workdir=killed", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "already finished" in again.stdout
    whole, killed = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed"))
    assert killed == whole
    assert whole["evaluation"]["sketch/third"] == 20 / 3
    assert [path.name for path in checkpoints.iterdir()] == ["step-000000020"]


class Report(Hook):
    def check(self, run):
        self.parts = 3

    def __call__(self, run):
        run.report("own", {"third": run.step / self.parts, "no_number": float("nan")})


class StopAt(Hook):
    def __call__(self, run):
        run.stop("enough")


def test_figures_of_before_a_crash_are_carried(tmp_path):
    settings = {"eval_source": digits("test"), "evaluate_every": 10, "checkpoint_every": 10}
    once = Report(30)
    once.due = lambda step, steps: step == 10
    trainer = make(tmp_path, hooks=[once, Crash(30)], **settings)
    with pytest.raises(RuntimeError, match="crash"):
        train(trainer)
    resumed = make(tmp_path, hooks=[once, Crash(30)], **settings)
    resumed.state.restore(newest(trainer))
    assert resumed.step == 20
    assert resumed.evaluation["own/third"] == 10 / 3
    assert resumed.evaluation.keys() == trainer.evaluation.keys() > {"own/third", "loss"}
    other = make(tmp_path, hooks=[], **settings)
    other.state.restore(newest(trainer))
    assert other.evaluation == {}  # they would stay for ever, of a step long gone


def test_a_run_made_shorter_reports_what_belongs_to_its_end(tmp_path):
    settings = {"eval_source": digits("test"), "checkpoint_every": 10, "hooks": [Report()]}
    trainer = make(tmp_path, **settings)
    train(trainer)
    assert trainer.state.complete
    for path in trainer.workdir.checkpoints.glob("*40"):
        path.rename(path.with_name("later"))
    shorter = make(tmp_path, **{**settings, "steps": 30})
    shorter.state.restore(newest(trainer))
    assert (shorter.state.finished, shorter.state.complete, shorter.evaluation) == (True, False, {})
    shorter.report_the_end()
    assert shorter.evaluation.keys() == trainer.evaluation.keys()
    assert shorter.evaluation["own/third"] == 10


class Killed(BaseException):
    """Ends the process as far as the trainer can tell."""


def test_killed_right_after_the_checkpoint_of_a_stop(tmp_path):
    """No checkpoint of that step is ever one of a run that goes on."""
    trainer = make(tmp_path, hooks=[StopAt(20)], checkpoint_every=10)
    save = trainer.state.save

    def save_and_die(**options):
        save(**options)
        if trainer.step == 20:
            raise Killed

    trainer.state.save = save_and_die
    with pytest.raises(Killed):
        train(trainer)
    resumed = make(tmp_path, hooks=[StopAt(20)], checkpoint_every=10)
    resumed.state.restore(newest(trainer))
    assert (resumed.step, resumed.state.stopped) == (20, "enough")
    assert resumed.state.complete
