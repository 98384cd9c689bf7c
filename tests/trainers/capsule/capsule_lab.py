"""A task with one fault of each kind, the run that it ends, and its replay's output."""

import textwrap

from tests.commands import CONFIGS, run
from trainers.replay.capsule.folder import Capsule

SOME = Capsule(
    step=3,
    exit_code=3,
    reason="not finite",
    seed=0,
    replicas=1,
    examples=[[0]],
    checkpoint=None,
    configuration={},
    environment={},
)

TWO, MESH = (f"--gin_file={CONFIGS / 'runtime' / name}.gin" for name in ("mirrored", "mesh"))

# 20 examples, 4 a step: each is seen once in 5 steps, so the bad one (17) is in one of the steps 10 to 14.
TASK = """
import gin
import numpy as np
import tensorflow as tf
from core.data import ArraySource
from core.module import Module
from core.optimizers import Transform, chain, sgd
from core.task import Loss, Task, Update

FROM = 10

class Inner(Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(tf.ones([3]), name="scale")

    def __call__(self, x, kind):
        x = self.scale * x
        if kind == "log":
            return tf.reduce_sum(tf.math.log(x), 1)
        if kind == "sqrt":
            return tf.reduce_sum(tf.sqrt(x), 1)
        return tf.reduce_sum(x, 1)

class Net(Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([0.1, 0.2, 0.3], name="w")
        self.inner = Inner()

    def __call__(self, x, struck, kind):
        return tf.reduce_sum(x * self.w, 1) + 0.01 * self.inner(tf.where(struck, 0.0, x), kind)

def forgetful():
    def init(params):
        return {"left": {path: tf.ones_like(p) for path, p in params.items()}}

    def update(gradients, state, params, *, step, value=None):
        left = {path: x - tf.math.log(tf.cast(FROM + 2 - step, tf.float32)) * 0.0 for path, x in state["left"].items()}
        return {path: state["left"][path] * g for path, g in gradients.items()}, {"left": left}

    return Transform("forgetful", init, update)

@gin.configurable
class Mine(Task):
    def __init__(self, *, rng, kind="none", mixes=False):
        super().__init__()
        self.net, self.kind, self.mixes = Net(), kind, mixes

    def phases(self):
        rate = lambda step: tf.where((self.kind == "rate") & (step >= FROM), 1e22, 0.01)
        rule = chain(forgetful(), sgd(rate)) if self.kind == "slot" else sgd(rate)
        return [Update("fit", loss=self.loss, trains=self.net, optimizer=rule, mixes_rows=self.mixes)]

    def loss(self, batch, rng):
        struck = (rng.step >= FROM) & (batch["number"] == 17)
        y = self.net(batch["x"], struck[:, tf.newaxis], self.kind)
        if self.mixes:
            y -= tf.reduce_mean(y)
        return Loss(tf.square(y))

@gin.configurable
def numbers(hole: bool = False):
    x = np.linspace(0.9, 1.0, 60, dtype="float32").reshape(20, 3)
    if hole:
        x[17, 1] = np.nan
    return ArraySource({"x": x, "number": np.arange(20)}, name="numbers")
"""

GIN = """
import mine
Experiment.task = @Mine
Experiment.train_source = @numbers()
Trainer.steps = 40
Trainer.global_batch_size = 4
Trainer.chunk_steps = 5
Trainer.log_every = 20
Trainer.checkpoint_every = 5
"""


def given_in(folder):
    """Writes a configuration as a run keeps it; returns its path."""
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "given.gin").write_text("Trainer.steps = 1\n")
    return folder / "config" / "given.gin"


def write(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(TASK))
    (tmp_path / "mine.gin").write_text(GIN)
    return ["--gin_file=mine.gin", "--workdir=run"]


def end_badly(tmp_path, *flags, exit_code=3):
    """Trains until the fault; returns the capsule's folder from the last line."""
    done = run(*write(tmp_path), *flags, cwd=tmp_path)
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    command = done.stderr.rpartition("`python -m trainers.main ")[2].partition("`")[0]
    (mode, capsule) = command.split()
    assert mode == "--mode=replay"
    return capsule.removeprefix("--capsule=")


def replayed(tmp_path, capsule, *flags, exit_code=3):
    """Returns a replay's output by the names in front of its lines; under "" the lines without any."""
    done = run("--mode=replay", f"--capsule={capsule}", *flags, cwd=tmp_path)
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    assert done.stderr == ""
    found = {"": []}
    for line in done.stdout.splitlines():
        name, text = ("", line) if not line.startswith("  ") else (line[2:13].strip(), line[13:])
        found.setdefault(name, []).append(text)
    return found
