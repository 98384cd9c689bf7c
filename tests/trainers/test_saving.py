"""Training continues while a checkpoint is written, and waits for it where it must."""

import json
import signal
import threading
from concurrent import futures
from types import SimpleNamespace

import pytest
from policy_lab import One, struck, trainer_of

from core import checkpoint
from core.checkpoint import saves, write
from core.errors import CheckpointError, DataError, PreemptedError
from tests.commands import CONFIGS, passed
from tests.core.checkpoint_lab import fail
from tests.trainers.trainer_lab import idle, make, train
from trainers.hooks import Hook
from trainers.lifecycle import train_to_end
from trainers.lifecycle.start import Configured, Start
from trainers.loop import recovery
from trainers.process.signals import InterruptedBySignal, Preemption


class At(Hook):
    """Acts before the checkpoint of a step."""

    def __init__(self, every, act):
        super().__init__(every)
        self.act = act

    def due(self, step, steps):
        return step == self.every

    def __call__(self, run):
        self.act(run)


@pytest.fixture
def held(monkeypatch):
    """Blocks the writer of checkpoints until something waits for it."""
    released, write_parts = threading.Event(), saves.write_parts

    def writing(*arguments):
        assert released.wait(60)
        return write_parts(*arguments)

    def waiting(*arguments, **options):
        released.set()
        return futures.wait(*arguments, **options)

    patched = SimpleNamespace(wait=waiting, ThreadPoolExecutor=futures.ThreadPoolExecutor)
    monkeypatch.setattr(saves, "write_parts", writing)
    monkeypatch.setattr(saves, "futures", patched)
    yield released
    released.set()


def loop(tmp_path, *hooks, **settings):
    return idle(make(tmp_path, hooks=[*hooks], **{"checkpoint_every": 20, "log_every": None, **settings}))


def steps_in(trainer):
    return checkpoint.steps_in(trainer.workdir.checkpoints)


def test_training_continues_during_a_save_and_the_end_waits_for_the_last(held, tmp_path):
    seen = []
    trainer = loop(tmp_path, At(30, lambda run: seen.append((run.state.saves.busy, steps_in(run)))))
    train(trainer)
    assert seen == [(True, [])]  # ten steps after the first was begun
    assert not trainer.state.saves.busy
    assert checkpoint.newest(trainer.workdir.checkpoints, warn=fail).step == 40


def test_save_that_fails_ends_the_run_after_the_next_chunk(tmp_path, monkeypatch):
    trainer = loop(tmp_path, checkpoint_every=10, chunk_steps=5)
    seal, take_steps = write.seal, trainer.take_steps

    def full(file):
        if "000000020" in str(file):
            raise OSError(28, "No space left on device", str(file))
        return seal(file)

    def take_steps_and_wait(*arguments, **options):
        take_steps(*arguments, **options)
        trainer.state.saves.wait(60)

    monkeypatch.setattr(write, "seal", full)
    monkeypatch.setattr(trainer, "take_steps", take_steps_and_wait)
    with pytest.raises(CheckpointError, match=r"step 20 could not be written .*No space left on device"):
        train(trainer)
    assert trainer.step == 25
    assert steps_in(trainer) == [10]


def test_crash_waits_for_the_save_under_way(held, tmp_path):
    def crash(run):
        raise ZeroDivisionError

    trainer = loop(tmp_path, At(20, crash), checkpoint_every=10)
    with pytest.raises(ZeroDivisionError):
        train(trainer)
    assert steps_in(trainer) == [10]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_save_of_a_signal_waits_for_the_one_under_way_and_is_waited_for(number, held, tmp_path):
    heard, seen = Preemption(), []

    def send(run):  # before the checkpoint of step 20 is begun, and handled at step 30
        heard._hear(number, None)

    def look(run):
        seen.append((run.state.saves.busy, steps_in(run)))

    trainer = loop(tmp_path, At(20, send), At(40, look), preemption=heard)
    heard._in_loop = True
    if number == signal.SIGUSR1:
        train(trainer)
        assert seen == [(False, [20, 30])]
        return
    with pytest.raises(PreemptedError, match="after step 30 of 40"):
        train(trainer)
    assert not trainer.state.saves.busy
    assert steps_in(trainer) == [20, 30]


def test_a_save_of_a_signal_that_fails_is_an_error_and_no_end_with_everything_saved(tmp_path, monkeypatch):
    heard = Preemption()
    hook = At(20, lambda run: heard._hear(signal.SIGTERM, None))
    trainer = loop(tmp_path, hook, preemption=heard, checkpoint_every=None)
    heard._in_loop = True
    monkeypatch.setattr(write, "seal", lambda file: (tmp_path / "gone").stat())
    with pytest.raises(CheckpointError, match="step 30 could not be written"):
        train(trainer)


def test_second_ctrl_c_waits_for_the_save_under_way(held, tmp_path):
    heard = Preemption()

    def interrupt(run):
        for _ in range(2):
            heard._hear(signal.SIGINT, None)

    trainer = loop(tmp_path, At(30, interrupt), preemption=heard)
    with pytest.raises(InterruptedBySignal):
        train(trainer)
    assert not trainer.state.saves.busy
    assert steps_in(trainer) == [20]


def test_a_process_that_is_ended_as_another_is_lost_waits_for_what_is_written(held, tmp_path, monkeypatch):
    membership, seen = SimpleNamespace(show=lambda doing: None), []
    monkeypatch.setattr(train_to_end, "joined", lambda: membership)

    def end(run):
        membership.last_words("worker 1 was lost")
        seen.append((json.loads((run.workdir.path / "result.json").read_text())["exit_code"], steps_in(run)))

    trainer = loop(tmp_path, At(30, end))
    configured = Configured({}, {}, read=dict, given=lambda: None, operative=str, note=str, remedy="")
    train_to_end.run_training(trainer, Start(trainer.workdir, configured), Preemption(), quiet=True)
    assert seen == [(6, [20])]


@pytest.mark.long
def test_capsule_of_a_bad_step_waits_for_the_save_that_it_begins_from(held, tmp_path):
    trainer, seen = trainer_of(tmp_path, "run", struck(tmp_path, 23), task=One, checkpoint_every=20), []

    def leave(context, error, step):
        seen.append(steps_in(trainer))
        return error

    trainer._recovery._leave = leave
    with pytest.raises(DataError, match="step 23 is not finite"):
        train(trainer)
    assert seen == [[20]]


@pytest.mark.long
def test_going_back_waits_for_the_save_under_way_which_all_then_read(held, tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, "back", struck(tmp_path, 23), task=One, on_nonfinite="rollback")
    told, newest = [], recovery.checkpoint.newest

    def hold(run):  # the save of this step alone
        run.settle()
        held.clear()

    trainer.hooks.insert(0, At(20, hold))

    def read(directory, **options):
        told.append("read")
        found = newest(directory, **options)
        assert found.step == 20
        return found

    def meet():
        told.append("busy" if trainer.state.saves.busy else "met")

    monkeypatch.setattr(recovery.checkpoint, "newest", read)
    monkeypatch.setattr(trainer._recovery, "leave_capsule", lambda error, *_: error)  # leaving one waits as well
    monkeypatch.setattr(trainer._recovery.agreement, "barrier", meet)
    train(trainer)
    assert "busy" not in told
    assert told[:3] == ["met", "read", "met"]
    assert trainer.state.passed_over.rollbacks == 1


@pytest.mark.long
def test_mesh_keeps_the_best_checkpoint(tmp_path):
    flags = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/mesh")]
    often = ("steps = 40", "evaluate_every = 10", "checkpoint_every = 10", "keep_checkpoints = 1")
    flags += [f"--gin_param=Trainer.{text}" for text in (*often, 'keep_best = "min loss"')]
    flags += ["--gin_param=mesh.batch = 2", "--gin_param=mesh.model = 1"]
    passed(*flags, "--workdir=run", cwd=tmp_path, timeout=300)
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    assert sorted({best["step"], 40}) == checkpoint.steps_in(tmp_path / "run" / "checkpoints")


class Clock(Hook):
    """A clock that each chunk of steps moves on by 40 seconds."""

    now = 0.0

    def after_chunk(self, run):
        self.now += 40.0

    def __call__(self, run):
        """Does nothing at the end."""


@pytest.mark.parametrize(
    ("is_chief", "told", "steps"),
    [
        (True, {}, [20, 30, 50, 60, 80]),  # two chunks after the last save, whoever asked for that one
        (False, {}, [30, 60, 80]),  # another worker's clock decides
        (False, {40: True}, [30, 40, 60, 80]),
    ],
)
def test_chiefs_clock_saves_on_all_workers(is_chief, told, steps, tmp_path, monkeypatch):
    clock = Clock()
    trainer = loop(tmp_path, clock, steps=80, checkpoint_every=30, checkpoint_every_minutes=1.0, keep_checkpoints=9)
    trainer.meter.clock = lambda: clock.now
    monkeypatch.setattr("trainers.trainer.is_chief", lambda: is_chief)

    def any_workers(*flags):
        if len(flags) == 1:
            return flags
        preempted, wanted, timed, writing = flags
        return preempted, wanted, timed or told.get(trainer.step, False), writing

    monkeypatch.setattr(trainer.agreement, "any_workers", any_workers)
    train(trainer)
    trainer.settle()
    assert [found.name for found in sorted(trainer.workdir.checkpoints.iterdir())] == [f"step-{x:09d}" for x in steps]
