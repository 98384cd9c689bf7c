"""Signals in each section of a run: no saved step is lost, no traceback, and the right exit code."""

import contextlib
import gc
import json
import os
import signal
import textwrap
import time

import pytest
from command_lab import gin, write_task

from core import checkpoint
from core.errors import PreemptedError
from core.telemetry import Telemetry
from tests.commands import CHECKOUT, CONFIGS, python, refused, run
from tests.core.telemetry.test_full_disk import Notes
from tests.trainers.trainer_lab import idle, make, newest, train
from trainers.errors.exit_report import exit_code_of
from trainers.hooks import Hook
from trainers.process.signals import InterruptedBySignal, Preemption

SEND = "import os, signal; os.kill(os.getpid(), signal.{})"


@pytest.mark.parametrize(("name", "code"), [("SIGHUP", 75), ("SIGINT", 130)])
def test_before_the_first_step_a_signal_ends_the_run_at_once(name, code, tmp_path):
    flag = write_task(tmp_path, outside=SEND.format(name))  # while modules are imported
    text = refused(flag, cwd=tmp_path, exit_code=code, says=[f"stopped by {name} before the first step"])
    assert text.count("\n") == 1
    assert not (tmp_path / "runs" / "mine" / "run.json").exists()


def test_except_of_users_code_stops_no_signal(tmp_path):
    init = f"""try:
            {SEND.format("SIGTERM")}
        except Exception:
            pass"""
    refused(write_task(tmp_path, init=init), cwd=tmp_path, exit_code=75, says=["stopped by SIGTERM"])


def test_operation_that_fails_during_a_signal_stops_no_signal(tmp_path):
    outside = """
        import os, signal, threading, time
        import tensorflow as tf

        def send_and_fail(queue):
            time.sleep(0.2)  # until the main thread waits, in C++
            os.kill(os.getpid(), signal.SIGTERM)
            queue.close()"""
    init = """queue = tf.queue.FIFOQueue(1, tf.float32)
        threading.Thread(target=send_and_fail, args=(queue,)).start()
        queue.dequeue()"""
    flag = write_task(tmp_path, outside=textwrap.dedent(outside), init=init)
    text = refused(flag, cwd=tmp_path, exit_code=75, says=["stopped by SIGTERM before the first step"])
    assert text.count("\n") == 1


HOOK = """
import os, signal
import gin
from trainers.hooks import Hook

@gin.configurable
class Send(Hook):
    def __init__(self, every=10, *, names=()):
        super().__init__(every)
        self.names = names

    def __call__(self, run):
        if run.step == 10:
            for name in self.names:
                os.kill(os.getpid(), getattr(signal, name))
"""


def train_and_send(tmp_path, *names, steps=40):
    """Returns flags of a run in chunks of 10 steps that sends itself these signals after the first."""
    (tmp_path / "send.py").write_text(HOOK)
    text = f"""
        import send
        Trainer.hooks = [@Send()]
        Send.names = {list(names)}
        Trainer.steps = {steps}
        Trainer.checkpoint_every = 10
        """
    return write_task(tmp_path), gin(tmp_path, text, "send.gin")


class Send(Hook):
    """Sends this process signals after step 10."""

    def __init__(self, *names):
        super().__init__(10)
        self.names = names

    def __call__(self, run):
        for name in self.names if run.step == 10 else ():
            os.kill(os.getpid(), getattr(signal, name))


def loop(tmp_path, *names, **settings):
    """Returns a trainer whose steps train nothing, and which gets these signals after step 10."""
    return idle(make(tmp_path, hooks=[Send(*names)], preemption=Preemption(), log_every=None, **settings))


def notes_of(trainer):
    notes = Notes()
    trainer.train(Telemetry([notes]))
    return "\n".join(notes.notes)


def test_command_ends_with_75_after_the_chunk_of_a_signal(tmp_path):
    flags = train_and_send(tmp_path, "SIGTERM")
    refused(*flags, cwd=tmp_path, exit_code=75, says=["stopped by SIGTERM after step 20 of 40"])
    assert checkpoint.newest(tmp_path / "runs" / "mine" / "checkpoints", warn=print).step == 20


@pytest.mark.parametrize("names", [["SIGHUP"], ["SIGINT"], ["SIGTERM", "SIGTERM", "SIGHUP"]], ids=" ".join)
def test_once_the_loop_has_begun_a_signal_is_granted_after_the_chunk(names, tmp_path):
    """A second one, from a scheduler that repeats it, interrupts nothing."""
    trainer = loop(tmp_path, *names)
    with pytest.raises(PreemptedError, match=f"stopped by {names[0]} after step 20 of 40") as error:
        train(trainer)
    assert exit_code_of(error.value) == 75
    assert newest(trainer).step == 20


def test_a_second_ctrl_c_ends_at_once_and_loses_but_the_last_steps(tmp_path):
    flags = train_and_send(tmp_path, "SIGINT", "SIGINT")
    text = refused(*flags, cwd=tmp_path, exit_code=130, says=["a second Ctrl-C"])
    assert text.count("\n") == 1
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (130, 10)


def test_slurms_warning_saves_and_the_run_resumes(tmp_path):
    trainer = loop(tmp_path, "SIGUSR1", "SIGUSR1")
    assert notes_of(trainer).count("SIGUSR1: saved as `step-000000020`, and going on") == 1
    assert newest(trainer).step == 40


def test_warning_before_the_first_step_is_granted_after_it(tmp_path):
    trainer = loop(tmp_path)
    with trainer._preemption.heard():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert "SIGUSR1: saved as `step-000000010`" in notes_of(trainer)


def test_warnings_are_ignored_by_a_mode_that_has_nothing_to_save(tmp_path):
    outside = f"{SEND.format('SIGUSR1')}; {SEND.format('SIGUSR2')}"
    done = run(write_task(tmp_path, outside=outside), "--mode=summary", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["main", "launch"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_signal_while_the_first_package_is_imported(command, name, code, tmp_path):
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text(SEND.format(name))
    done = python("-m", f"trainers.{command}", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, f"error: stopped by {name}. Run the same command again.\n")


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_while_tensorflow_is_imported(number, code, tmp_path):
    # The import itself sends the signal: from outside it might come a moment before or after.
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
            import os, sys

            class Interrupting:
                def find_spec(self, name, path=None, target=None):
                    if name == "tensorflow.python":
                        sys.meta_path.remove(self)
                        os.kill(os.getpid(), {int(number)})

            sys.meta_path.insert(0, Interrupting())
            """)
    )
    flags, path = [f"--gin_file={CONFIGS / 'digits_linear.gin'}"], os.pathsep.join([str(tmp_path), str(CHECKOUT)])
    done = python("-m", "trainers.main", *flags, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: stopped by")
    assert done.stderr.count("\n") == 1


def test_signal_on_the_way_out_ends_the_process_at_once(tmp_path):
    text = textwrap.dedent("""
        import os, signal
        from trainers.process.signals import Preemption
        with Preemption().granted():
            try:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                print("never reached")
        """)
    done = python("-c", text, cwd=tmp_path, PYTHONPATH=os.fspath(CHECKOUT))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_sighup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        preemption = Preemption()
        with preemption.granted():
            os.kill(os.getpid(), signal.SIGHUP)
        assert preemption.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGHUP", 75), ("SIGINT", 130)])
def test_signal_is_obeyed_and_the_handlers_are_restored(name, code):
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(InterruptedBySignal, match=f"stopped by {name} before") as error, Preemption().heard():
        os.kill(os.getpid(), getattr(signal, name))
    assert error.value.exit_code == code
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("early", [False, True], ids=["in time", "while the hook still runs"])
def test_signal_during_a_garbage_collection_is_heard_after_it(early, capsys, monkeypatch):
    told, preemption = [], Preemption()

    def collecting(phase, info):
        if not told:
            told.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))  # the handler runs in here, and Python ignores its exceptions

    @contextlib.contextmanager
    def slow_to_start(number):
        yield
        while early and preemption._heard < 3:  # the hook continues until the signal has come again, twice
            time.sleep(0.001)

    def collect_and_wait():
        gc.callbacks.append(collecting)  # only now: a collection before the run handles signals would end the process
        gc.collect()
        while True:
            time.sleep(0.01)

    monkeypatch.setattr("trainers.process.signals.held_back", slow_to_start)
    try:
        with pytest.raises(InterruptedBySignal, match="stopped by SIGTERM"), preemption.heard():
            collect_and_wait()
    finally:
        gc.callbacks.remove(collecting)
    assert told
    assert "ignored" not in capsys.readouterr().err
