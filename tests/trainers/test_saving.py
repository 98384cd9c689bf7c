"""A run that goes on while its checkpoints are written, and waits for them where it has to."""

import json
import signal
import threading
import types

import pytest

from core import checkpoint
from core.checkpoint import saves, write
from core.errors import CheckpointError, DataError, PreemptedError
from tests.commands import CONFIGS, run
from tests.core.checkpoint_lab import fail
from tests.trainers.test_policies import struck, trainer_of
from tests.trainers.trainer_lab import make, train
from trainers import recovery, training
from trainers import trainer as module
from trainers.hooks import Hook
from trainers.preemption import InterruptedBySignal, Preemption
from trainers.start import Configured, Start


class At(Hook):
    """Does something before the checkpoint of a step."""

    def __init__(self, every, act):
        super().__init__(every)
        self.act = act

    def due(self, step, steps):
        return step == self.every

    def __call__(self, run):
        self.act(run)


@pytest.fixture
def held(monkeypatch):
    """Lets no writer begin before it is set."""
    released, write_parts = threading.Event(), saves.write_parts

    def waiting(*arguments):
        assert released.wait(60)
        return write_parts(*arguments)

    monkeypatch.setattr(saves, "write_parts", waiting)
    yield released
    released.set()


def steps_in(trainer):
    return checkpoint.steps_in(trainer.workdir.checkpoints)


def settle_to_release(trainer, held):
    """Has the writer held until somebody waits for it."""
    settle = trainer.state.settle

    def released(**options):
        held.set()
        settle(**options)

    trainer.state.settle = released


def test_steps_are_taken_while_a_checkpoint_is_written_and_the_end_waits_for_the_last(held, tmp_path):
    seen = []

    def release(run):
        seen.append((run.state.saves.busy, steps_in(run)))
        held.set()

    trainer = make(tmp_path, checkpoint_every=20, hooks=[At(30, release)])
    train(trainer)
    assert seen == [(True, [])]  # ten steps after the first was begun
    assert not trainer.state.saves.busy
    assert checkpoint.newest(trainer.workdir.checkpoints, warn=fail).step == 40


def test_a_checkpoint_that_can_not_be_written_ends_the_run_where_the_next_chunk_ends(tmp_path, monkeypatch):
    trainer = make(tmp_path, checkpoint_every=10, chunk_steps=5, log_every=None)
    seal, wait = write.seal, threading.Event()

    def full(file):
        if "000000020" in str(file):
            raise OSError(28, "No space left on device", str(file))
        return seal(file)

    def until_it_has_failed(run):
        while run.state.saves.busy:
            wait.wait(0.01)

    monkeypatch.setattr(write, "seal", full)
    taken = type(trainer).take_steps

    def then_wait(self, *arguments, **options):
        taken(self, *arguments, **options)
        until_it_has_failed(self)

    monkeypatch.setattr(type(trainer), "take_steps", then_wait)
    with pytest.raises(CheckpointError, match=r"step 20 could not be written .*No space left on device"):
        train(trainer)
    assert trainer.step == 25
    assert steps_in(trainer) == [10]


def test_a_crash_waits_for_what_is_written(held, tmp_path):
    def crash(run):
        threading.Timer(0.1, held.set).start()
        raise ZeroDivisionError

    trainer = make(tmp_path, checkpoint_every=10, hooks=[At(20, crash)])
    with pytest.raises(ZeroDivisionError):
        train(trainer)
    assert steps_in(trainer) == [10]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_save_of_a_signal_waits_for_the_one_under_way_and_is_waited_for(number, held, tmp_path):
    heard, seen = Preemption(), []

    def send(run):  # before the checkpoint of step 20 is begun, and heard at step 30
        heard._hear(number, None)
        threading.Timer(0.2, held.set).start()

    def look(run):
        seen.append((run.state.saves.busy, steps_in(run)))

    trainer = make(tmp_path, checkpoint_every=20, hooks=[At(20, send), At(40, look)], preemption=heard)
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
    trainer = make(tmp_path, hooks=[At(20, lambda run: heard._hear(signal.SIGTERM, None))], preemption=heard)
    heard._in_loop = True
    monkeypatch.setattr(write, "seal", lambda file: (tmp_path / "gone").stat())
    with pytest.raises(CheckpointError, match="step 30 could not be written"):
        train(trainer)


def test_a_second_ctrl_c_waits_for_what_is_written(held, tmp_path):
    heard = Preemption()

    def interrupt(run):
        threading.Timer(0.2, held.set).start()
        for _ in range(2):
            heard._hear(signal.SIGINT, None)

    trainer = make(tmp_path, checkpoint_every=20, hooks=[At(30, interrupt)], preemption=heard)
    with pytest.raises(InterruptedBySignal):
        train(trainer)
    assert not trainer.state.saves.busy
    assert steps_in(trainer) == [20]


def test_a_process_that_is_ended_as_another_is_lost_waits_for_what_is_written(held, tmp_path, monkeypatch):
    membership, seen = types.SimpleNamespace(), []
    monkeypatch.setattr(training, "joined", lambda: membership)

    def end(run):
        threading.Timer(0.2, held.set).start()
        membership.last_words("worker 1 was lost")
        seen.append((json.loads((run.workdir.path / "result.json").read_text())["exit_code"], steps_in(run)))

    trainer = make(tmp_path, checkpoint_every=20, hooks=[At(30, end)])
    configured = Configured({}, {}, read=dict, given=lambda: None, operative=str, note=str, remedy="")
    training.run_training(trainer, Start(trainer.workdir, configured), Preemption(), quiet=True)
    assert seen == [(6, [20])]


def test_the_capsule_of_a_bad_step_waits_for_what_it_begins_from(held, tmp_path, monkeypatch):
    trainer, seen = trainer_of(tmp_path, "run", struck(tmp_path, 23), checkpoint_every=20), []
    settle_to_release(trainer, held)

    def leave(experiment, settings, workdir, data, error, step):
        seen.append(steps_in(trainer))
        return error

    monkeypatch.setattr(module, "leaving_capsule", leave)
    with pytest.raises(DataError, match="step 23 is not finite"):
        train(trainer)
    assert seen == [[20]]


def test_going_back_waits_for_the_save_under_way_which_all_then_read(held, tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, "back", struck(tmp_path, 23), on_nonfinite="rollback")
    told, newest = [], recovery.checkpoint.newest

    def hold(run):  # the save of this step alone
        run.settle()
        held.clear()

    settle_to_release(trainer, held)
    held.set()
    trainer.hooks.insert(0, At(20, hold))

    def read(directory, **options):
        told.append("read")
        found = newest(directory, **options)
        assert found.step == 20
        return found

    def meet():
        told.append("busy" if trainer.state.saves.busy else "met")

    monkeypatch.setattr(recovery.checkpoint, "newest", read)
    monkeypatch.setattr(trainer._recovery, "_leave_capsule", lambda error, step: error)  # who leaves one waits himself
    monkeypatch.setattr(trainer._recovery.agreement, "barrier", meet)
    train(trainer)
    assert "busy" not in told
    assert told[:3] == ["met", "read", "met"]
    assert trainer.state.rollbacks == 1


STOPS = """
Trainer.hooks = [@EarlyStopping()]
Trainer.keep_best = "max accuracy"
Trainer.keep_every = 1000
EarlyStopping.figure = "max accuracy"
EarlyStopping.every = 500
"""


@pytest.mark.long
def test_a_run_that_keeps_more_and_may_stop_resumes_exactly(tmp_path):
    (tmp_path / "stops.gin").write_text(STOPS)
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--gin_file=stops.gin"]
    done = run(*flags, "--mode=resume_check", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resume is exact" in done.stdout


@pytest.mark.long
def test_two_replicas_on_a_mesh_keep_the_best_too(tmp_path):
    flags = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/mesh")]
    often = ("steps = 40", "evaluate_every = 10", "checkpoint_every = 10", "keep_checkpoints = 1")
    flags += [f"--gin_param=Trainer.{text}" for text in (*often, 'keep_best = "min loss"')]
    flags += ["--gin_param=mesh.batch = 2", "--gin_param=mesh.model = 1"]
    done = run(*flags, "--workdir=run", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    assert sorted({best["step"], 40}) == checkpoint.steps_in(tmp_path / "run" / "checkpoints")
