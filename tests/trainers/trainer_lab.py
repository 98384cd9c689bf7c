"""A small trainer for tests, its metric lines, and a crash."""

import pytest

from core import checkpoint
from core.data import digits
from core.optimizers import adamw, sgd
from core.telemetry import Telemetry
from models.classifiers.linear import LinearClassifier
from models.classifiers.mlp import Mlp, MlpClassifier
from trainers.experiment import Experiment
from trainers.hooks import Hook
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir


class Dropping(Mlp):
    """Drops some of its inputs at random, so that one layer is enough to depend on the random numbers of a step."""

    def __call__(self, x, rng=None):
        return super().__call__(self.dropout(x, rng), rng)


def linear(*, rng):
    """Returns the classifier that is traced, and compiled by XLA, in the shortest time."""
    return LinearClassifier(rng=rng, in_size=64, num_classes=10, optimizer=sgd(0.1))


def small_mlp(*, rng):
    """Returns a classifier of one layer: it is traced in half the time of two, and on replicas in a third."""
    task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=adamw(3e-3))
    task.net = Dropping([64, 10], rng=rng, dropout=0.1)
    return task


def make(tmp_path, name="run", *, task=small_mlp, source=None, strategy=None, preemption=None, **settings):
    workdir = Workdir(tmp_path / name)
    workdir.create()
    source = source or digits("train")
    held_out = {name: settings.pop(name) for name in ("eval_source", "eval_sources") if name in settings}
    experiment = Experiment(task=task, train_source=source, strategy=strategy, **held_out)
    settings = {"steps": 40, "global_batch_size": 32, "chunk_steps": 10, "log_every": 20, **settings}
    settings = {"evaluate_every": None, "checkpoint_every": None, **settings}
    return Trainer(experiment, workdir, Settings(**settings), preemption)


def newest(trainer, **choice):
    """The newest checkpoint, once it is written, which mustn't be damaged."""
    trainer.settle()
    return checkpoint.newest(trainer.workdir.checkpoints, warn=pytest.fail, **choice)


def hashes(trainer):
    return {path: saved.sha256 for path, saved in newest(trainer).variables.items()}


class Lines:
    """A writer that remembers."""

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


def untrained(stacked):
    """Stands for `Trainer.program` where only the loop counts: its steps train nothing, so nothing is traced."""
    return lambda stacked, place: None


class Crash(Hook):
    """Ends the process as far as the trainer can tell."""

    def due(self, step, steps):
        return step == self.every

    def __call__(self, run):
        raise RuntimeError("crash")
