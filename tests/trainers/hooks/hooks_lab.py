"""A task that makes images, and writers and hooks that record their input."""

import numpy as np
import tensorflow as tf

from core.optimizers import sgd
from core.task import Loss, Task, Update
from core.telemetry import Telemetry
from tests.toys import point_source
from tests.trainers.trainer_lab import Deep, Lines, make
from trainers.hooks import Hook


class Maker(Task):
    """Returns the given images; grey ones by default."""

    def __init__(self, *, rng, made=None):
        super().__init__()
        self.w = tf.Variable(0.5, name="w")
        self.made = made or (lambda n: {"image": tf.fill([n, 4, 4, 1], self.w.read_value())})

    def phases(self):
        return [Update("w", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(batch["x"][:, 0] * self.w)

    def sample(self, rng, n):
        return self.made(n)


class Notes(Lines):
    """A screen that records its lines and notes."""

    live = False

    def __init__(self):
        super().__init__()
        self.notes = []

    def progress(self, step, figures=None):
        pass

    def note(self, text):
        self.notes.append(text)


class Kept(Hook):
    """Records all variables at each of its steps."""

    def __init__(self, every=None):
        super().__init__(every)
        self.kept = {}

    def __call__(self, run):
        self.kept[run.step] = {path: v.numpy() for path, v in run.experiment.variables.items()}


class Written(Lines):
    """A file: a writer that also receives values which no screen shows."""

    def of(self, split):
        return {step: figures for step, found, figures in self.lines if found == split}


def watched(tmp_path, hook, task=Deep, **settings):
    """Trains with a hook that mustn't change a variable; returns its output in files and on screen, and variables."""
    settings = {"steps": 6, "chunk_steps": 1, "log_every": 1, "global_batch_size": 8, **settings}
    before, after, file, screen = Kept(hook.every), Kept(settings["chunk_steps"]), Written(), Notes()
    make(tmp_path, task=task, source=point_source(64), hooks=[before, hook, after], **settings).train(
        Telemetry([file, screen])
    )
    for step, values in before.kept.items():
        np.testing.assert_equal(after.kept[step], values)
    return file, screen, after.kept
