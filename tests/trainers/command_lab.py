"""Helpers of the command's tests: gin files, a custom task with a mistake, a run with output into pipes."""

import os
import tempfile
import textwrap
from concurrent import futures
from pathlib import Path

from tests.commands import Done, fork_server, forkable, run_process


def run_into_pipes(*arguments, cwd):
    """Runs the command as `tests.commands.run` for a process with a file size limit, which pipes don't have."""
    if not forkable():
        return run_process(*arguments, cwd=cwd)
    with tempfile.TemporaryDirectory() as folder, futures.ThreadPoolExecutor(2) as readers:
        streams = {name: Path(folder) / name for name in ("stdout", "stderr")}
        for path in streams.values():
            os.mkfifo(path)
        texts = [readers.submit(path.read_text) for path in streams.values()]
        fork_server().begin(*arguments, cwd=cwd, **{name: str(path) for name, path in streams.items()})
        return Done(arguments, fork_server().answer(300), *(text.result() for text in texts))


def gin(tmp_path, text, name="mine.gin"):
    """Writes a gin file with this text; returns the flag for it."""
    (tmp_path / name).write_text(textwrap.dedent(text))
    return f"--gin_file={name}"


TASK = """
import gin
import numpy as np
import tensorflow as tf
from core.data import ArraySource
from core.module import Module
from core.task import Loss, Task, Update

class Net(Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3]), name="w")
        self.unused = tf.Variable(tf.ones([2]), name="unused")

    def __call__(self, x):
        return tf.reduce_sum(x * self.w, 1) + 0.0 * tf.reduce_sum(self.unused)

{outside}

@gin.configurable
class Mine(Task):
    def __init__(self, *, rng, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = Net()
        self.optimizer = optimizer
        {init}

    def phases(self):
        return [Update("net", loss=self.loss, trains={trains}, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        y = {y}
        {loss}

@gin.configurable
def numbers(count: int = 20):
    x = np.arange(3.0 * count, dtype="float32").reshape(count, 3) / (3 * count)
    return ArraySource({{"x": x}}, name="numbers")
"""

MINE = """
import mine
Experiment.task = @Mine
Experiment.train_source = @numbers()
Mine.optimizer = @sgd()
sgd.learning_rate = 0.01
Trainer.steps = 20
Trainer.global_batch_size = 4
Trainer.log_every = 10
Trainer.chunk_steps = 10
"""

PARTS = {
    "outside": "",
    "init": "",
    "trains": "self.net",
    "y": "self.net(batch['x'])",
    "loss": "return Loss(tf.square(y))",
}


def write_task(tmp_path, **parts):
    (tmp_path / "mine.py").write_text(TASK.format(**{**PARTS, **parts}))
    return gin(tmp_path, MINE)
