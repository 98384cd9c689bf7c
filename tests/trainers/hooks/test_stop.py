"""Hooks that stop a run, and what hooks keep: both are in the checkpoint."""

import json
import signal

import pytest
import tensorflow as tf

from core import checkpoint
from core.data import digits
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.task import Loss, Task, Update
from core.telemetry import Telemetry
from tests.commands import CONFIGS, run
from tests.trainers.trainer_lab import Crash, Lines, hashes, make, newest, train
from trainers.hooks import Hook, Quality


class StopAt(Hook):
    """Asks to stop after a step, whatever comes of it."""

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


# A checkpoint is due with the stop or not; so is a metric line.
@pytest.mark.parametrize(
    ("checkpoint_every", "log_every"), [(10, 10), pytest.param(20, 20, marks=pytest.mark.long), (None, None)]
)
def test_everything_that_ends_a_run_follows_a_stop(tmp_path, checkpoint_every, log_every):
    settings = {"checkpoint_every": checkpoint_every, "log_every": log_every, "eval_source": digits("test")}
    late = Count()
    trainer = make(tmp_path, hooks=[StopAt(10, at=30), late], steps=60, **settings)
    lines = train(trainer)
    assert (trainer.step, late.calls) == (30, 1)
    assert [(step, split) for step, split, _ in lines if step == 30] == [(30, "train"), (30, "eval")]
    manifest = newest(trainer)
    assert manifest.step == 30
    assert manifest.extra["stop"] == {"reason": "30 is enough", "steps": 60, "hooks": ["StopAt", "Count"]}
    assert trainer.state.outcome == "stopped at step 30: 30 is enough"
    # It is the checkpoint of a run that was to have thirty steps.
    planned = make(tmp_path, "planned", steps=30, **settings)
    assert train(planned) == lines
    assert hashes(planned) == hashes(trainer)
    assert "stop" not in newest(planned).extra


def test_a_stop_lasts_until_there_are_more_steps_or_other_hooks(tmp_path):
    def again(**settings):
        trainer = make(tmp_path, **{"steps": 60, "hooks": [StopAt(10, at=30)], **settings})
        trainer.state.restore(newest(trainer))
        return trainer

    train(make(tmp_path, hooks=[StopAt(10, at=30)], steps=60))
    assert again().state.finished
    assert again(steps=40).state.finished
    assert again(log_every=10).state.outcome == "stopped at step 30: 30 is enough"
    assert train(again()) == []
    assert not again(steps=80).state.finished
    without = again(hooks=[])
    assert not without.state.finished
    train(without)
    whole = make(tmp_path, "whole", steps=60)
    train(whole)
    assert hashes(without) == hashes(whole)
    assert "stop" not in newest(without).extra


def test_at_the_last_step_there_is_nothing_to_stop(tmp_path):
    trainer = make(tmp_path, hooks=[StopAt(20, at=40)], steps=40)
    train(trainer)
    assert (trainer.state.outcome, trainer.state.stopped) == ("finished", None)


def test_workers_agree_on_a_stop(tmp_path):
    """The agreement is made to answer as it does where another worker has asked: after the hooks of step 20."""
    trainer = make(tmp_path, steps=60, hooks=[Count(20)])
    asked = []

    def any_worker(flag):
        assert flag is False
        asked.append(trainer.step)
        return trainer.step == 20

    trainer.agreement.any_worker = any_worker
    trainer.agreement.first_text = lambda text: text or "another worker's reason"
    train(trainer)
    assert asked == [20]  # where hooks were called; about signals it is asked elsewhere
    assert newest(trainer).extra["stop"]["reason"] == "another worker's reason"


def test_a_step_is_evaluated_once(tmp_path):
    class Look(Hook):
        def __call__(self, run):
            assert run.evaluate() == run.evaluate()

    lines = train(make(tmp_path, hooks=[Look(20)], eval_source=digits("test"), evaluate_every=10))
    assert [step for step, split, _ in lines if split == "eval"] == [10, 20, 30, 40]


def test_what_hooks_keep_survives_a_crash(tmp_path):
    def counting(crash=None):
        hooks = [Count(10), Count(20), Quiet(10)]
        trainer = make(tmp_path, steps=60, checkpoint_every=20, hooks=hooks)
        trainer.hooks += [Crash(crash)] if crash else []
        return trainer, hooks

    first, _ = counting(crash=50)  # ten steps after a checkpoint, which the second run takes again
    with pytest.raises(RuntimeError, match="crash"):
        train(first)
    assert set(newest(first).extra["hooks"]) == {"Count", "Count_2"}
    second, hooks = counting()
    second.state.restore(newest(second))
    train(second)
    assert [hook.calls for hook in hooks[:2]] == [6, 3]


class Quiet(Hook):
    """Keeps nothing, and takes nothing."""

    def __call__(self, run):
        pass

    def load(self, state):
        raise AssertionError(state)


def test_state_that_no_checkpoint_can_hold_is_refused(tmp_path):
    class Array(Quiet):
        def state(self):
            return {"mean": tf.zeros([2]).numpy()}

    text = r"`state\(\)` of the hook `Array` returns .* which no checkpoint can hold .*`\.tolist\(\)`"
    with pytest.raises(ConfigurationError, match=text):
        train(make(tmp_path, hooks=[Array()]))


class Alike(Task):
    """Samples of which all are the same."""

    def __init__(self, *, rng):
        super().__init__()
        self.w = tf.Variable(0.0, name="w")

    def phases(self):
        return [Update("w", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_mean(batch["image"], [1, 2, 3]) * self.w)

    def sample(self, rng, n):
        return {"image": tf.zeros([n, 4, 4, 1])}


@pytest.mark.parametrize("crash", [None, 10])
def test_a_collapse_is_seen_twice_in_a_row_across_a_crash(tmp_path, crash):
    class Judge:
        samples = 4

        def __call__(self, image, label=None):
            return {"diversity": 0.1}

    notes = []

    class Screen(Lines):
        live = False

        def progress(self, step, figures=None):
            pass

        def note(self, text):
            notes.append(text)

    def start():
        return make(tmp_path, task=Alike, steps=20, checkpoint_every=10, hooks=[Quality(10, judge=Judge())])

    trainer = start()
    if crash:
        trainer.hooks.append(Crash(crash))
        with pytest.raises(RuntimeError, match="crash"):
            trainer.train(Telemetry([Screen()]))
        assert not any("collapsed" in note for note in notes)
        trainer = start()
        trainer.state.restore(newest(trainer))
    trainer.train(Telemetry([Screen()]))
    assert sum("samples vary by 0.10" in note and "collapsed" in note for note in notes) == 1


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


def test_the_command_stops_keeps_and_goes_on(tmp_path):
    (tmp_path / "patience.py").write_text(PATIENCE)
    (tmp_path / "patience.gin").write_text("import patience\nTrainer.hooks = [@Patience()]\nPatience.every = 20\n")
    settings = ("steps = 200", "chunk_steps = 5", "log_every = 15", "checkpoint_every = 10", "evaluate_every = None")
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", *(f"--gin_param=Trainer.{text}" for text in settings)]

    def start(*more, workdir="run", hook="--gin_file=patience.gin"):
        return run(*flags, *([hook] if hook else []), *more, f"--workdir={workdir}", cwd=tmp_path)

    whole = start(workdir="whole")
    assert whole.returncode == 0, whole.stderr
    assert start("--kill_after_step=45").returncode == -signal.SIGKILL  # of two calls, a checkpoint knows
    done = start()
    assert done.returncode == 0, done.stderr
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "run")]
    assert results[0] == results[1]
    reason = results[1]["reason"]
    assert reason.startswith("stopped at step 60: 3 losses: [")
    assert (results[1]["step"], results[1]["exit_code"]) == (60, 0)
    assert f"finished: {reason}, in `run`" in " ".join(done.stdout.split())
    saved = [checkpoint.newest(tmp_path / name / "checkpoints", warn=print) for name in ("whole", "run")]
    assert saved[0].variables == saved[1].variables
    assert saved[0].extra == saved[1].extra
    again = start()
    assert again.returncode == 0
    assert f"already finished: {reason}, loss " in " ".join(again.stdout.split())
    # Another patience, no such hook, more steps: each of them goes on.
    for more, hook in ((["--gin_param=Patience.calls = 9"], "--gin_file=patience.gin"), ([], None)):
        assert "going on from step 60" in start(*more, "--kill_after_step=65", hook=hook).stdout
    longer = start("--gin_param=Trainer.steps = 205")
    assert longer.returncode == 0, longer.stderr
    assert "going on from step 60" in longer.stdout
    assert "finished: 205 steps" in longer.stdout
