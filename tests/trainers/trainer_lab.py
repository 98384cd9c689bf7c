"""A small trainer for tests, its metric lines, and a crash."""

import itertools
from collections.abc import Callable

import pytest
import tensorflow as tf

from core import checkpoint, layers
from core.optimizers import sgd
from core.task import Loss
from core.telemetry import Telemetry
from models.classifiers.mlp import Mlp
from tests.toys import Line, point_source
from trainers.errors.tensorflow import explained
from trainers.experiment import Experiment
from trainers.hooks import Hook
from trainers.loop.input import Chunks
from trainers.replay.capsule.leave import leaving_capsule
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir


class Small(Line):
    """Fits points through dropout, with an optimizer that has slots: random draws and all saved state matter."""

    net: Callable[..., tf.Tensor]
    optimizer = sgd(0.1, momentum=0.9)

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.dropout = layers.Dropout(0.1)

    def loss(self, batch, rng):
        return self.judged(self.net(self.dropout(batch["x"], rng)), batch)

    def evaluate(self, batch):
        return self.judged(self.net(batch["x"]), batch)

    def judged(self, made, batch):
        error = made[:, 0] - batch["y"]
        return Loss(tf.square(error), metrics={"accuracy": tf.cast(tf.abs(error) < 1.0, tf.float32)})


class Deep(Small):
    """Has two layers, and dropout between them."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net = Mlp([3, 4, 1], rng=rng, dropout=0.1)

    def loss(self, batch, rng):
        return self.judged(self.net(batch["x"], rng), batch)


POINTS, HELD_OUT = point_source(600), point_source(360, seed=1)


def make(tmp_path, name="run", *, task=Small, source=POINTS, strategy=None, preemption=None, step=0, **settings):
    workdir = Workdir(tmp_path / name)
    workdir.create()
    held_out = {name: settings.pop(name) for name in ("eval_source", "eval_sources") if name in settings}
    experiment = Experiment(task=task, train_source=source, strategy=strategy, **held_out)
    settings = {"steps": 40, "global_batch_size": 32, "chunk_steps": 10, "log_every": 20, **settings}
    settings = {"evaluate_every": None, "checkpoint_every": None, **settings}
    return Trainer(experiment, workdir, Settings(**settings), preemption, step=step, leave_capsule=leaving_capsule)


def newest(trainer, **choice):
    """Returns the newest checkpoint, once it is written; it mustn't be damaged."""
    trainer.settle()
    return checkpoint.newest(trainer.workdir.checkpoints, warn=pytest.fail, **choice)


def hashes(trainer):
    return {path: saved.sha256 for path, saved in newest(trainer).variables.items()}


class Lines:
    """A writer that records its lines."""

    def __init__(self):
        self.lines = []

    def write(self, step, split, figures):
        measured = ("examples_per_second", "step_seconds", "data_wait")
        self.lines.append((step, split, {k: float(x) for k, x in figures.items() if k not in measured}))

    def close(self):
        self.closed = True


def train(trainer):
    lines = Lines()
    trainer.train(Telemetry([lines]))
    return lines.lines


class Untrained:
    """Stands for `Trainer.programs`: its steps train nothing, so nothing is traced."""

    def __init__(self, experiment):
        self._experiment = experiment

    def explained(self):
        return explained(self._experiment.train_source)

    def make(self, stacked, note):
        return lambda stacked, place: None

    def begin(self, run, stacked):
        """Does nothing."""

    def tell(self, telemetry, seconds):
        """Returns no values."""


def idle(trainer):
    """Makes a trainer train nothing and read nothing, for tests of the loop alone; returns it."""
    trainer.programs = Untrained(trainer.experiment)
    trainer.input.chunks_from = lambda *_, **__: Chunks(itertools.repeat(None))
    return trainer


class Crash(Hook):
    """Ends the process as far as the trainer can tell."""

    def due(self, step, steps):
        return step == self.every

    def __call__(self, run):
        raise RuntimeError("crash")
