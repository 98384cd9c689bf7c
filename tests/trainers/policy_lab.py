"""Runs with bad steps: two networks trained in turn, on examples of which some strike."""

import json

import numpy as np
import tensorflow as tf
from trainer_lab import Lines, make, newest

from core import layers
from core.data import ArraySource
from core.optimizers import adam
from core.task import Loss, Task, Update
from core.telemetry import JsonLines, Telemetry
from trainers.again import pass_steps
from trainers.hooks import Hook

STEPS, ROWS, BATCH = 40, 1024, 8  # 128 steps an epoch
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(ROWS, 3).astype(np.float32)


class Pair(Task):
    """Trains two networks in turn: what is bad shows in the second, once the first is written."""

    def __init__(self, *, rng):
        super().__init__()
        self.first, self.second = (layers.Linear(3, 1, rng=rng.fold(name)) for name in ("first", "second"))

    def phases(self):
        return [
            Update("first", loss=self.first_loss, trains=self.first, optimizer=adam(0.05)),
            Update("second", loss=self.second_loss, trains=self.second, optimizer=adam(0.05)),
        ]

    def first_loss(self, batch, rng):
        return Loss(tf.square(self.first(batch["x"])[:, 0] - 1.0))

    def second_loss(self, batch, rng):
        return Loss(tf.square(self.second(batch["x"])[:, 0] - self.first(batch["x"])[:, 0]) * batch["times"])


class Counted(Hook):
    """Keeps something, from its first call on."""

    calls = 0

    def __call__(self, run):
        self.calls += 1
        run.report("counted", {"calls": float(self.calls)})

    def state(self):
        return {"calls": self.calls} if self.calls else {}

    def load(self, state):
        self.calls = state.get("calls", 0)


def source(*bad, value=np.nan):
    """Examples of which those at these places of the first epoch's order are bad."""
    times = np.ones([ROWS], np.float32)
    for row in bad:
        times[row] = value
    return ArraySource({"x": X, "times": times}, name="some")


def bad_source(trainer_of, steps, value=np.nan):
    """A source that strikes at these steps, of the first epoch."""
    input = trainer_of(source()).input
    return source(*(int(input.examples_of(step)[0, 0]) for step in steps), value=value)


def trainer_of(tmp_path, name, source, hooks=(), **settings):
    how = {"steps": STEPS, "global_batch_size": BATCH, "chunk_steps": 5, "log_every": 10, "checkpoint_every": 10}
    return make(tmp_path, name, task=Pair, source=source, hooks=[Counted(15), *hooks], **{**how, **settings})


def struck(tmp_path, *steps, value=np.nan):
    return bad_source(lambda found: trainer_of(tmp_path, "looked", found), steps, value)


def train(trainer):
    lines = Lines()
    telemetry = Telemetry([lines, JsonLines(trainer.workdir.metrics, trainer.step)])
    trainer.train(telemetry)
    telemetry.close()
    return lines.lines


def resume(trainer):
    trainer.state.restore(newest(trainer))
    return train(trainer)


def end_of(trainer):
    """All that stands at the end of a run: what is learnt, the place in the data, the lines."""
    manifest = newest(trainer)
    timed = ("examples_per_second", "step_seconds", "data_wait")
    lines = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    lines = [{key: x for key, x in line.items() if key not in timed} for line in lines]
    return {path: x.sha256 for path, x in manifest.variables.items()}, manifest.examples, dict(manifest.extra), lines


def led(trainer, *parts):
    """Takes these steps alone, `(begin, end)`; returns what they lead to."""
    for begin, end in parts:
        trainer.state.step = begin
        pass_steps(trainer, end)
    return weights(trainer)


def weights(trainer):
    return {path: v.numpy() for path, v in trainer.state.variables.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
