"""Every exit code in every mode that can end with it: the process, its stderr and its `result.json` agree.

A row names the place that fails and its code; all share one task, which runs the file named after that place.
"""

import json
import shutil
from typing import NamedTuple

import pytest

from tests.commands import run

TASK = """
from pathlib import Path

import gin
import numpy as np
import tensorflow as tf

from core.data import ArraySource, Source
from core.errors import DataError
from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update
from trainers.hooks import Hook

def at(place, *given):
    file = Path(f"at_{place}.py")
    if file.exists():
        return exec(compile(file.read_text(), str(file.absolute()), "exec"), {**globals(), "given": given})

at("module")

class Net(Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3]), name="w")

@gin.configurable
class Mine(Task):
    def __init__(self, *, rng):
        super().__init__()
        at("constructor")
        self.net = Net()

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(self.rate))]

    def rate(self, step):
        at("schedule")
        return 0.01

    def loss(self, batch, rng):
        y = tf.reduce_sum(batch["x"] * self.net.w, 1)
        at("loss")
        return Loss(tf.square(y), metrics={"size": self.size(y)})

    def size(self, y):
        at("metric")
        return y

    def evaluate(self, batch):
        at("evaluation")
        return Loss(tf.reduce_sum(batch["x"] * self.net.w, 1) ** 2)

    def sample(self, rng, n):
        at("sample")
        bad = np.nan if Path("at_pixels.py").exists() else 0.0
        return {"image": tf.zeros([n, 4, 4, 1]) + tf.reduce_sum(0.0 * self.net.w) + bad}

@gin.configurable
class Noisy(Hook):
    def __call__(self, run):
        at("hook", run)

@gin.configurable
class Numbers(Source):
    def __init__(self):
        super().__init__("numbers", size=20, place="here")
        at("source")

    @property
    def spec(self):
        return {"x": tf.TensorSpec([3], tf.float32)}

    def gather(self, indices):
        at("gather")
        def read(i):
            at("reading")
            return np.ones([len(i), 3], "float32")
        return {"x": tf.ensure_shape(tf.numpy_function(read, [indices], tf.float32), [None, 3])}
"""
GIN = """
import table
Experiment.task = @Mine
Experiment.train_source = @Numbers()
Experiment.eval_source = @Numbers()
Trainer.steps = 30
Trainer.global_batch_size = 4
Trainer.chunk_steps = 10
Trainer.log_every = None
Trainer.evaluate_every = None
Trainer.checkpoint_every = None
Trainer.hooks = [@Noisy()]
Noisy.every = 10
"""
TWO = ("--gin_param=Experiment.strategy = @mirrored()", "--gin_param=mirrored.replicas = 2")
THEIRS = "raise type('Theirs', (BaseException,), {})('mine')"
W = "w = given[0].experiment.task.net.w; "
# Threads that read ahead fail after the run has, and C++ prints it.
STILL_SPEAKING = """
import os, threading, time
def speak():
    while True:
        os.write(2, b"C++ speaks\\n")
        time.sleep(1e-4)
threading.Thread(target=speak, daemon=True).start()
np.zeros(2**46)
"""
SIGTERM = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"


class Row(NamedTuple):
    """A failure in a mode, and how the run ends. `began`: the first chunk of steps was traced by then."""

    mode: str
    place: str
    body: str
    code: int
    says: str
    began: bool = False
    flags: tuple[str, ...] = ()


ROWS = [
    Row("train", "module", "raise ValueError('mine')", 1, "ValueError: mine"),
    Row("train", "constructor", "len(3)", 1, "TypeError: object of type 'int' has no len()"),
    Row("train", "source", "open('nowhere')", 1, "FileNotFoundError"),
    Row("train", "schedule", "{}['nothing']", 1, "KeyError: 'nothing'"),
    Row("train", "loss", "raise SystemExit(0)", 1, "`sys.exit(0)` was called"),
    Row("train", "metric", "def f(): f()\nf()", 1, "RecursionError"),
    Row("train", "gather", "raise ValueError('mine')", 1, "ValueError: mine"),
    Row("train", "reading", "int('x')", 1, "ValueError: invalid literal"),
    Row("train", "reading", "raise SystemExit(0)", 1, "SystemExit: 0"),
    Row("train", "evaluation", THEIRS, 1, "Theirs: mine"),
    Row("train", "hook", "raise SystemExit('done')", 1, "`sys.exit('done')` was called", True),
    Row("train", "constructor", "from core.layers import Linear; Linear(0, 3, rng=0)", 2, "at_constructor.py:1"),
    Row("train", "module", "import trainers.nowhere; 1", 1, "No module named 'trainers.nowhere'"),
    Row("train", "hook", W + "w.assign([np.inf] * 3)", 3, "not finite", True),
    Row("train", "hook", "import shutil; shutil.rmtree('new', True)", 5, "was removed or moved", True),
    Row("train", "hook", W + "w.values[1].assign(w.values[0] + 1.0)", 7, "net/w", True, TWO),
    Row("train", "module", "raise MemoryError", 8, "out of memory while importing a module"),
    Row("train", "source", "open('/dev/full', 'w').write('x' * 10**6)", 8, "No space left on device"),
    Row("train", "source", "raise DataError('torn')", 4, "torn"),
    Row("train", "reading", STILL_SPEAKING, 8, "out of memory while reading a batch: Unable to allocate 512. TiB"),
    Row("train", "evaluation", "raise MemoryError", 8, "out of memory while"),
    Row("train", "constructor", SIGTERM, 75, "stopped by SIGTERM"),
    Row("train", "hook", "raise KeyboardInterrupt", 130, "interrupted by Ctrl-C", True),
    Row("evaluate", "evaluation", "raise OSError('mine')", 1, "OSError: mine"),
    Row("evaluate", "constructor", "raise SystemExit(0)", 1, "`sys.exit(0)` was called"),
    Row("evaluate", "source", "raise DataError('torn')", 4, "torn"),
    Row("evaluate", "untrained", "", 5, "there is no checkpoint"),
    Row("evaluate", "reading", "np.zeros(2**46)", 8, "out of memory while evaluating: Unable to allocate 512. TiB"),
    Row("sample", "sample", "raise TypeError('mine')", 1, "TypeError: mine"),
    Row("sample", "pixels", "", 3, "pixels that aren't finite"),
    Row("sample", "source", "raise DataError('torn')", 4, "torn"),
    Row("sample", "untrained", "", 5, "there is no checkpoint"),
    Row("sample", "sample", "raise MemoryError", 8, "out of memory while sampling"),
    Row("sample", "flags", "", 2, "`--samples` is 0", flags=("--samples=0",)),
    Row("summary", "module", "raise SystemExit(0)", 1, "`sys.exit(0)` was called"),
    Row("summary", "flags", "", 2, "Trainer.stepz", flags=("--gin_param=Trainer.stepz = 1",)),
    Row("summary", "constructor", "bytearray(2**60)", 8, "out of memory while making the task"),
    Row("resume_check", "module", THEIRS, 1, "Theirs: mine"),
    Row("resume_check", "flags", "", 2, "Trainer.stepz", flags=("--gin_param=Trainer.stepz = 1",)),
]  # fmt: skip

# Each of these has a test within a process, and the run that it needs with the command takes longest.
ELSEWHERE = {("hook", 3), ("hook", 5), ("hook", 7)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the task, and a workdir of it that has ended with 0."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "table.py").write_text(TASK)
    (folder / "table.gin").write_text(GIN)
    done = run("--gin_file=table.gin", "--workdir=run", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def read_result(workdir):
    path = workdir / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def case(row):
    marks = [pytest.mark.long] if (row.place, row.code) in ELSEWHERE else []
    return pytest.param(row, marks=marks, id=f"{row.mode}-{row.place}-{row.code}-{row.says[:12]}")


@pytest.mark.parametrize("row", map(case, ROWS))
def test_process_stderr_and_result_agree(row, trained, request):
    before = read_result(trained / "run")
    assert (before["exit_code"], before["step"]) == (0, 30)
    mistake = trained / f"at_{row.place}.py"
    mistake.write_text(row.body)
    request.addfinalizer(mistake.unlink)
    workdir = "new" if row.mode == "train" or row.place == "untrained" else "run"
    shutil.rmtree(trained / "new", ignore_errors=True)
    done = run("--gin_file=table.gin", f"--workdir={workdir}", f"--mode={row.mode}", *row.flags, cwd=trained)
    assert done.returncode == row.code, (done.returncode, done.stderr)
    assert row.says in done.stderr
    if row.code == 1:
        assert "Traceback (most recent call last)" in done.stderr
        assert f"at_{row.place}.py" in done.stderr
    else:
        assert done.stderr.startswith("error: "), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert read_result(trained / "run") == before
    if row.mode == "train" and row.says != "was removed or moved":
        result = read_result(trained / "new")
        assert result["exit_code"] == row.code
        assert row.says in result["reason"] or row.place == "constructor"
        assert (result["step"] is not None) == row.began
