"""What the tests of the command write: gin files, and a task of one's own with a mistake in it."""

import textwrap


def gin(tmp_path, text, name="mine.gin"):
    """The flag for a gin file with this text."""
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
