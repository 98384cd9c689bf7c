"""Hooks that stop a run, and hooks' state: checkpoints hold both."""

import json
import signal

import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.telemetry import Telemetry
from tests.commands import CONFIGS, run
from tests.trainers.command_lab import gin
from tests.trainers.hooks.hooks_lab import Maker, Notes
from tests.trainers.trainer_lab import HELD_OUT, Crash, hashes, idle, make, newest, train
from trainers.hooks import Hook, Quality


class StopAt(Hook):
    """Asks to stop after a step, always."""

    def __init__(self, every=None, *, at):
        super().__init__(every)
        self.at = at

    def __call__(self, run):
        if run.step >= self.at:
            run.stop(f"{self.at} is enough")


class Count(Hook):
    """Counts its calls, also those before a crash."""

    def __init__(self, every=None):
        super().__init__(every)
        self.calls = 0

    def __call__(self, run):
        self.calls += 1

    def state(self):
        return {"calls": self.calls, "thirds": [self.calls / 3]}

    def load(self, state):
        assert state["thirds"] == [state["calls"] / 3]  # to the last bit
        self.calls = state["calls"]


def make_line(tmp_path, name="run", **settings):
    return make(tmp_path, name, **{"global_batch_size": 4, **settings})


def make_idle(tmp_path, **settings):
    return idle(make_line(tmp_path, **settings))


# A checkpoint is due with the stop or not; so is a metric line.
@pytest.mark.long
@pytest.mark.parametrize("every", [10, None])
def test_stop_is_followed_by_everything_that_ends_a_run(tmp_path, every):
    settings = {"checkpoint_every": every, "log_every": every, "eval_source": HELD_OUT}
    late, make_run = Count(), make_line if every else make_idle
    trainer = make_run(tmp_path, hooks=[StopAt(10, at=30), late], steps=60, **settings)
    lines = train(trainer)
    assert (trainer.step, late.calls) == (30, 1)
    assert [(step, split) for step, split, _ in lines if step == 30] == [(30, "train"), (30, "eval")]
    manifest = newest(trainer)
    assert manifest.step == 30
    assert manifest.extra["stop"] == {"reason": "30 is enough", "steps": 60, "hooks": ["StopAt", "Count"]}
    assert trainer.state.outcome == "stopped at step 30: 30 is enough"
    # It is the checkpoint of a run that was to have thirty steps.
    planned = make_run(tmp_path, name="planned", steps=30, **settings)
    assert train(planned) == lines
    assert hashes(planned) == hashes(trainer)
    assert "stop" not in newest(planned).extra


@pytest.mark.long
def test_stop_lasts_until_there_are_more_steps_or_other_hooks(tmp_path):
    def again(bindings=None, **settings):
        trainer = make_idle(tmp_path, **{"steps": 60, "hooks": [StopAt(10, at=30)], **settings})
        trainer.workdir.hooks = bindings or {}
        trainer.state.restore(newest(trainer))
        return trainer

    train(make_idle(tmp_path, hooks=[StopAt(10, at=30)], steps=60))
    assert again().state.finished
    assert again(steps=40).state.finished
    assert again(log_every=10).state.outcome == "stopped at step 30: 30 is enough"
    assert train(again()) == []
    assert not again(steps=80).state.finished
    assert not again({"StopAt.at": "50"}).state.finished
    without = again(hooks=[])
    assert not without.state.finished
    train(without)
    assert (newest(without).step, "stop" in newest(without).extra) == (60, False)


def test_stop_at_the_last_step_changes_nothing(tmp_path):
    trainer = make_idle(tmp_path, hooks=[StopAt(20, at=40)], steps=40)
    train(trainer)
    assert (trainer.state.outcome, trainer.state.ending.stopped) == ("finished", None)


def test_workers_agree_on_a_stop(tmp_path):
    """The agreement answers as if another worker had asked: after the hooks of step 20."""
    trainer = make_idle(tmp_path, steps=60, hooks=[Count(20)])
    asked = []

    def any_worker(flag):
        assert flag is False
        asked.append(trainer.step)
        return trainer.step == 20

    trainer.agreement.any_worker = any_worker
    trainer.agreement.first_text = lambda text: text or "another worker's reason"
    train(trainer)
    assert asked == [20]  # after hook calls; signals have a separate agreement
    assert newest(trainer).extra["stop"]["reason"] == "another worker's reason"


def test_step_is_evaluated_once(tmp_path):
    class Look(Hook):
        def __call__(self, run):
            assert run.evaluate() == run.evaluate()

    lines = train(make_idle(tmp_path, hooks=[Look(20)], eval_source=HELD_OUT, evaluate_every=10))
    assert [step for step, split, _ in lines if split == "eval"] == [10, 20, 30, 40]


def test_state_of_hooks_survives_a_crash(tmp_path):
    def counting(crash=None):
        hooks = [Count(10), Count(20), Quiet(10)]
        trainer = make_idle(tmp_path, steps=60, checkpoint_every=20, hooks=hooks)
        trainer.hooks += [Crash(crash)] if crash else []
        return trainer, hooks

    first, _ = counting(crash=50)  # ten steps after a checkpoint, which the second run repeats
    with pytest.raises(RuntimeError, match="crash"):
        train(first)
    assert set(newest(first).extra["hooks"]) == {"Count", "Count_2"}
    second, hooks = counting()
    second.state.restore(newest(second))
    train(second)
    assert [hook.calls for hook in hooks[:2]] == [6, 3]


class Quiet(Hook):
    """Keeps nothing, and restores nothing."""

    def __call__(self, run):
        pass

    def load(self, state):
        raise AssertionError(state)


def test_state_of_hooks_that_no_checkpoint_can_hold_is_refused(tmp_path):
    class Array(Quiet):
        def state(self):
            return {"mean": tf.zeros([2]).numpy()}

    text = r"`state\(\)` of the hook `Array` returns .* which a checkpoint can't store .*`\.tolist\(\)`"
    with pytest.raises(ConfigurationError, match=text):
        train(make_idle(tmp_path, hooks=[Array()]))


class Judge:
    """Finds all samples alike."""

    samples = 4

    def __call__(self, image, label=None):
        return {"diversity": 0.1}


def test_collapse_is_seen_twice_in_a_row_across_a_crash(tmp_path):
    screen = Notes()

    def start():
        hooks = [Quality(10, judge=Judge())]
        return make_idle(tmp_path, task=Maker, steps=30, checkpoint_every=10, hooks=hooks)

    trainer = start()
    trainer.hooks.append(Crash(10))
    with pytest.raises(RuntimeError, match="crash"):
        trainer.train(Telemetry([screen]))
    assert not any("collapsed" in note for note in screen.notes)
    trainer = start()
    trainer.state.restore(newest(trainer))
    trainer.hooks.append(Crash(20))
    with pytest.raises(RuntimeError, match="crash"):
        trainer.train(Telemetry([screen]))
    assert sum("samples vary by 0.10" in note and "collapsed" in note for note in screen.notes) == 1


PATIENCE = """
import gin
from trainers.hooks import Hook

@gin.configurable
class Patience(Hook):
    \"\"\"Stops the run at the last of so many calls.\"\"\"

    def __init__(self, every=None, *, calls=3):
        super().__init__(every)
        self.calls, self.losses = calls, []

    def __call__(self, run):
        self.losses.append(run.evaluate()["loss"])
        if len(self.losses) == self.calls:
            run.stop(f"{self.calls} losses: {self.losses}")

    def state(self):
        return {"losses": self.losses}

    def load(self, state):
        self.losses = state["losses"]
"""


@pytest.mark.long
def test_command_stops_saves_and_resumes(tmp_path):
    (tmp_path / "patience.py").write_text(PATIENCE)
    hook = gin(tmp_path, "import patience\nTrainer.hooks = [@Patience()]\nPatience.every = 20\n", name="patience.gin")
    settings = ("steps = 200", "chunk_steps = 5", "log_every = 15", "checkpoint_every = 10", "evaluate_every = None")
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", *(f"--gin_param=Trainer.{text}" for text in settings)]

    def start(*more):
        return run(*flags, hook, *more, "--workdir=run", cwd=tmp_path)

    assert start("--kill_after_step=45").returncode == -signal.SIGKILL  # the checkpoint knows of two calls
    done = start()
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    reason = result["reason"]
    assert reason.startswith("stopped at step 60: 3 losses: [")
    assert len(set(json.loads(reason.partition("losses: ")[2]))) == 3
    assert (result["step"], result["exit_code"]) == (60, 0)
    assert f"finished: {reason}, in `run`" in " ".join(done.stdout.split())
    again = start()
    assert again.returncode == 0
    assert f"already finished: {reason}, loss " in " ".join(again.stdout.split())
    patient = start("--gin_param=Patience.calls = 4")
    assert "resuming from step 60" in patient.stdout
    assert "finished: stopped at step 80: 4 losses" in " ".join(patient.stdout.split())
