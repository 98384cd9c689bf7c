"""Signals in each section of a run: nothing is lost that was saved, no traceback, and the code says what to do."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from command_lab import gin, write_task

from core import checkpoint
from tests.commands import CHECKOUT, CONFIGS, environment, refused, run
from trainers.preemption import InterruptedBySignal, Preemption

SEND = "import os, signal; os.kill(os.getpid(), signal.{})"


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGHUP", 75), ("SIGINT", 130)])
def test_before_the_first_step_a_signal_ends_the_run_at_once(name, code, tmp_path):
    flag = write_task(tmp_path, outside=SEND.format(name))  # while modules are imported
    text = refused(flag, cwd=tmp_path, exit_code=code, says=[f"stopped by {name} before the first step"])
    assert text.count("\n") == 1
    assert not (tmp_path / "runs" / "mine" / "run.json").exists()


def test_an_except_of_somebody_elses_keeps_no_signal(tmp_path):
    init = f"""try:
            {SEND.format("SIGTERM")}
        except Exception:
            pass"""
    refused(write_task(tmp_path, init=init), cwd=tmp_path, exit_code=75, says=["stopped by SIGTERM"])


def test_an_operation_that_fails_as_the_signal_comes_keeps_none_either(tmp_path):
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
    """Trains, in chunks of 10 steps, and sends itself these signals from a hook after the first."""
    (tmp_path / "send.py").write_text(HOOK)
    text = f"""
        import send
        Trainer.hooks = [@Send()]
        Send.names = {list(names)}
        Trainer.steps = {steps}
        Trainer.checkpoint_every = 10
        """
    return write_task(tmp_path), gin(tmp_path, text, "send.gin")


def newest(tmp_path):
    return checkpoint.newest(tmp_path / "runs" / "mine" / "checkpoints", warn=print).step


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_once_the_loop_has_begun_a_signal_is_granted_after_the_chunk(name, tmp_path):
    flags = train_and_send(tmp_path, name)
    refused(*flags, cwd=tmp_path, exit_code=75, says=[f"stopped by {name} after step 20 of 40"])
    assert newest(tmp_path) == 20


def test_what_a_scheduler_says_twice_interrupts_nothing(tmp_path):
    flags = train_and_send(tmp_path, "SIGTERM", "SIGTERM", "SIGHUP")
    refused(*flags, cwd=tmp_path, exit_code=75, says=["stopped by SIGTERM after step 20"])


def test_a_second_ctrl_c_ends_at_once_and_loses_but_the_last_steps(tmp_path):
    flags = train_and_send(tmp_path, "SIGINT", "SIGINT")
    text = refused(*flags, cwd=tmp_path, exit_code=130, says=["a second Ctrl-C"])
    assert text.count("\n") == 1
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert result["exit_code"] == 130
    done = run(*flags, "--gin_param=Send.names = []", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert newest(tmp_path) == 40


def test_slurms_warning_saves_and_the_run_goes_on(tmp_path):
    flags = train_and_send(tmp_path, "SIGUSR1", "SIGUSR1")
    done = run(*flags, "--gin_param=Trainer.checkpoint_every = None", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("SIGUSR1: saved as `step-000000020`, and going on") == 1
    assert newest(tmp_path) == 40


def test_a_warning_before_the_first_step_is_granted_after_it(tmp_path):
    done = run(write_task(tmp_path, outside=SEND.format("SIGUSR1")), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "SIGUSR1: saved as `step-000000010`" in done.stdout


def test_what_has_nothing_to_save_does_not_die_of_the_warning(tmp_path):
    done = run(write_task(tmp_path, outside=SEND.format("SIGUSR1")), "--mode=summary", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["main", "launch"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_signal_while_the_first_package_is_imported(command, name, code, tmp_path):
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text(SEND.format(name))
    line = [sys.executable, "-m", f"trainers.{command}", "--help"]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, f"error: stopped by {name}. Run the same command again.\n")


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_to_a_process_that_imports_tensorflow(number, code, tmp_path):
    # The signal is sent from within the import itself: from outside it might come a moment before or after.
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
    done = subprocess.run(
        [sys.executable, "-m", "trainers.main", f"--gin_file={CONFIGS / 'digits_linear.gin'}"],
        cwd=tmp_path, env={**environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)])},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: stopped by")
    assert done.stderr.count("\n") == 1


def test_a_signal_on_the_way_out_ends_the_process_there_and_then(tmp_path):
    text = textwrap.dedent("""
        import os, signal
        from trainers.preemption import Preemption
        with Preemption().granted():
            try:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                print("never reached")
        """)
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path, env={**environment(), "PYTHONPATH": os.fspath(CHECKOUT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
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


def test_handlers_are_given_back():
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(InterruptedBySignal), Preemption().heard():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("early", [False, True], ids=["in time", "while the hook still runs"])
def test_signal_during_a_garbage_collection_is_heard_after_it(early, capsys, monkeypatch):
    told, preemption = [], Preemption()

    def collecting(phase, info):
        if not told:
            told.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))  # the handler runs in here, and Python ignores what it raises

    @contextlib.contextmanager
    def slow_to_start(number):
        yield
        while early and preemption._heard < 3:  # the hook goes on until the signal has come again, twice
            time.sleep(0.001)

    def collect_and_wait():
        gc.collect()
        while True:
            time.sleep(0.01)

    monkeypatch.setattr("trainers.preemption.held_back", slow_to_start)
    gc.callbacks.append(collecting)
    try:
        with pytest.raises(InterruptedBySignal, match="stopped by SIGTERM"), preemption.heard():
            collect_and_wait()
    finally:
        gc.callbacks.remove(collecting)
    assert told
    assert "ignored" not in capsys.readouterr().err
