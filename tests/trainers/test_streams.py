"""A command with closed or full standard streams continues, and writes to no wrong file; its imports."""

import gc
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.commands import CHECKOUT, CONFIGS, environment, fork_server, python
from trainers.process.bootstrap import without_collector

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
SHORT = tuple(
    f"--gin_param=Trainer.{text}"
    for text in ("steps = 20", "chunk_steps = 5", "log_every = 5", "evaluate_every = 20", "checkpoint_every = 20")
)
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def shell(text, *, cwd, **variables):
    """Runs a line of bash, where `$python` is this interpreter."""
    return subprocess.run(
        ["bash", "-c", text],
        cwd=cwd, env={**environment(), "python": sys.executable, **variables}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def forked(*flags, cwd, stdout="stdout", stderr="stderr"):
    """Runs the command in a fork, with these files for its output; returns the exit code."""
    fork_server().begin(*flags, cwd=cwd, stdout=str(cwd / stdout), stderr=str(cwd / stderr))
    return fork_server().answer(300)


@pytest.fixture
def folder(tmp_path):
    for name in ("stdout", "stderr"):
        (tmp_path / name).touch()
    return tmp_path


def train(workdir):
    return f"$python -m trainers.main '{LINEAR}' {' '.join(f'{flag!r}' for flag in SHORT)} --workdir={workdir}"


PEEK = """
import json
import pathlib
import sys
import gin
from trainers.hooks import Hook

API = "tensorflow._api.v2"
LEFT_OUT = ["keras", f"{API}.compat.v1", f"{API}.compat.v2", f"{API}.lite", "jax"]

def there(names):
    return [name for name in names if sys.modules.get(name)]

FOUND = {"imported": there(LEFT_OUT)}

@gin.configurable
class Peek(Hook):
    def __call__(self, run):
        FOUND["asked for by a step"] = there(set(LEFT_OUT) - {f"{API}.compat.v2"})
        import tensorflow as tf
        import tensorflow.lite.python.convert_phase  # which imports a package of the published one's name
        assert tf.lite.TFLiteConverter and "Optimize" in dir(tf.lite)
        assert tf.compat.v1.get_default_graph and tf.compat.v2.Variable is tf.Variable and len(dir(tf.compat.v1)) > 600
        assert not hasattr(tf.lite, "nothing")
        places = [place for place in tf.__path__ if place and "keras" in place]
        assert len(places) == 2, tf.__path__
        pathlib.Path("found.json").write_text(json.dumps(FOUND))
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """Returns the folder of a run whose process has no streams, with convolutions and dropout in its network."""
    folder = tmp_path_factory.mktemp("closed")
    (folder / "peek.py").write_text(PEEK)
    bound = ["import peek", "Trainer.hooks = [@Peek()]", "Peek.every = 2", "ConvNetClassifier.channels = [2]"]
    bound += [f"Trainer.{each} = 2" for each in ("steps", "log_every", "evaluate_every", "checkpoint_every")]
    flags = " ".join(f"--gin_param='{text}'" for text in bound)
    command = f"$python -m trainers.main --gin_file='{CONFIGS / 'digits_convnet.gin'}' {flags} --workdir=closed"
    assert shell(f"{command} <&- >&- 2>&-", cwd=folder, PYTHONPATH="").returncode == 0
    return folder


@pytest.mark.long
def test_closed_streams_end_up_in_no_file(closed):
    workdir = closed / "closed"
    assert json.loads((workdir / "result.json").read_text())["exit_code"] == 0
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        assert "step" in json.loads(line)
    assert (workdir / ".lock").read_bytes() == b""
    assert b"loss" not in (workdir / "native_stderr.log").read_bytes()
    assert (workdir / "checkpoints" / "step-000000002" / "manifest.json").exists()


def test_left_out_modules_come_when_they_are_asked_for_and_no_step_asks(closed):
    assert json.loads((closed / "found.json").read_text()) == {"imported": [], "asked for by a step": []}


def test_a_reader_that_leaves_changes_nothing(folder):
    os.mkfifo(folder / "pipe")

    def read_a_line():
        with open(folder / "pipe") as pipe:
            pipe.readline()

    reader = threading.Thread(target=read_a_line, daemon=True)
    reader.start()
    assert forked(LINEAR, *SHORT, "--workdir=piped", cwd=folder, stdout="pipe") == 0
    assert (folder / "stderr").read_text() == ""
    assert json.loads((folder / "piped" / "result.json").read_text())["step"] == 20


def test_full_disk_behind_stdout_is_reported_once_and_the_run_continues(folder):
    assert forked(LINEAR, *SHORT, "--workdir=full", cwd=folder, stdout="/dev/full") == 0
    (warning,) = (folder / "stderr").read_text().splitlines()
    assert warning.startswith("Warning: the standard output can't be written: No space left on device.")
    assert json.loads((folder / "full" / "result.json").read_text())["step"] == 20


@pytest.mark.parametrize("stdout", ["stdout", "/dev/full"])
def test_full_disk_behind_stderr_changes_no_exit_code(stdout, folder):
    assert forked("--gin_file=nowhere.gin", cwd=folder, stdout=stdout, stderr="/dev/full") == 2
    assert (folder / "stdout").read_text() == ""


ROOM_AGAIN = """
import resource, sys
from trainers.process.standard_streams import keep_streams
keep_streams()
resource.setrlimit(resource.RLIMIT_FSIZE, (6, resource.RLIM_INFINITY))  # a disk that is all but full
print("before", "it is full", "twice", sep="\\n", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(" again")
"""


def test_output_is_complete_again_once_there_is_room(tmp_path):
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(
            [sys.executable, "-c", ROOM_AGAIN],
            cwd=CHECKOUT, env=environment(), stdout=log, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (tmp_path / "log").read_text() == "before again\n"
    assert (done.returncode, done.stderr.count("Warning: ")) == (0, 1)


@pytest.mark.parametrize(
    ("command", "streams"), [("main", ">&- 2>&-"), ("main", "| true"), ("launch", "> /dev/full 2>&-")]
)
def test_help_without_a_reader_is_no_failure(command, streams, tmp_path):
    line = f"exec 3>&1; $python -m trainers.{command} --help {streams}; echo ${{PIPESTATUS[0]}} >&3"
    done = shell(line, cwd=tmp_path)
    assert done.stdout == "0\n"
    assert done.stderr == ""


LETTERS = """
import sys
from trainers.process.standard_streams import keep_streams
keep_streams()
print("β")
print("error: `β` is not a value", file=sys.stderr)
"""


def test_letters_that_the_locale_lacks_are_written_as_escapes(tmp_path):
    (tmp_path / "letters.py").write_text(LETTERS, "utf-8")
    done = shell("$python letters.py", cwd=tmp_path, **ASCII, PYTHONPATH=os.fspath(CHECKOUT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u03b2\n", "error: `\\u03b2` is not a value\n")


@pytest.mark.long
def test_a_training_among_names_that_the_locale_lacks(tmp_path):
    folder = tmp_path / "ä" / os.fsdecode(b"\xe9")  # the latter isn't UTF-8
    folder.mkdir(parents=True)
    np.savez(folder.parent / "größe.npz", image=np.ones([20, 8, 8, 1], "float32"), label=np.arange(20) % 10)
    (folder / "mine.gin").write_text(
        '# Übung mit β\nExperiment.train_source = @npz()\nnpz.path = "ä/größe.npz"\n', "utf-8"
    )
    done = shell(f"{train('ä/β')} --gin_file=ä/$'\\xe9'/mine.gin", cwd=tmp_path, **ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished: 20 steps, in `\\udcc3\\udca4/\\udcce\\udcb2`" in done.stdout
    workdir = tmp_path / "ä" / "β"
    assert json.loads((workdir / "result.json").read_text("utf-8"))["exit_code"] == 0
    assert "größe.npz" in (workdir / "config" / "given.gin").read_text("utf-8")
    assert (workdir / "checkpoints" / "step-000000020" / "manifest.json").exists()


VANISHED = """
import os, pty, sys
from trainers.process.standard_streams import keep_streams
keep_streams()
here, there = pty.openpty()
os.dup2(there, 1)
os.close(there)
os.close(here)  # the terminal is gone: writing to it is EIO
print("lost", flush=True)
print("on", file=sys.stderr)
"""


def test_terminal_that_vanishes_is_no_failure(tmp_path):
    done = python("-c", VANISHED, cwd=tmp_path, PYTHONPATH=os.fspath(CHECKOUT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "on\n")


RUDE = """
import os
import sys
import gin
from trainers.hooks import Hook

@gin.configurable
class Rude(Hook):
    def __call__(self, run):
        os.chdir("/")
        print("the last word")
        sys.stdout.close()
        sys.stderr.close()
"""


def test_hook_that_closes_streams_and_changes_the_directory_ends_no_run(folder):
    (folder / "rude.py").write_text(RUDE)
    bound = [f"--gin_param={text}" for text in ("import rude", "Trainer.hooks = [@Rude()]", "Rude.every = 5")]
    assert forked(LINEAR, *SHORT, *bound, "--workdir=mine", cwd=folder) == 0
    assert (folder / "stderr").read_text() == ""
    assert (folder / "stdout").read_text().count("the last word") == 4
    result = json.loads((folder / "mine" / "result.json").read_text())
    assert (result["step"], result["exit_code"]) == (20, 0)
    assert (folder / "mine" / "checkpoints" / "step-000000020" / "manifest.json").exists()


def test_collector_is_off_during_imports():
    assert gc.isenabled()
    before = gc.get_freeze_count()
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def test_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
