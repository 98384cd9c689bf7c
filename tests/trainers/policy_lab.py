"""Runs with bad steps: two networks trained in turn, on examples of which some make a step bad."""

import json
import shutil

import numpy as np
import tensorflow as tf
from trainer_lab import Lines, make, newest

from core.data import ArraySource
from core.optimizers import sgd
from core.task import Loss
from core.telemetry import JsonLines, Telemetry
from tests import toys
from trainers.hooks import Hook
from trainers.replay.repeat_steps import pass_steps

STEPS, ROWS, BATCH = 40, 1024, 8  # 128 steps an epoch
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(ROWS, 3).astype(np.float32)


class Pair(toys.Pair):
    """Trains two networks in turn: a bad example shows in the second, after the first is written."""

    optimizer = sgd(0.05, momentum=0.9)

    def second_loss(self, batch, rng):
        return Loss(super().second_loss(batch, rng).per_example * batch["times"])


class One(toys.Line):
    """Trains one network, where writes before a bad example don't matter."""

    optimizer = sgd(0.05, momentum=0.9)

    def loss(self, batch, rng):
        return Loss(tf.square(self.net(batch["x"])[:, 0] - 1.0) * batch["times"])


class Counted(Hook):
    """Counts its calls, and keeps the count in checkpoints."""

    calls = 0

    def __call__(self, run):
        self.calls += 1
        run.report("counted", {"calls": float(self.calls)})

    def state(self):
        return {"calls": self.calls} if self.calls else {}

    def load(self, state):
        self.calls = state.get("calls", 0)


def source(*bad, value=np.nan):
    """Returns examples of which these rows are bad."""
    times = np.ones([ROWS], np.float32)
    for row in bad:
        times[row] = value
    return ArraySource({"x": X, "times": times}, name="some")


_order = []  # a run's input: the examples of each step are the same in all of them


def struck(tmp_path, *steps, value=np.nan):
    """Returns a source whose examples make these steps of the first epoch bad."""
    if not _order:
        _order.append(trainer_of(tmp_path, "order", source()).input)
    return source(*(int(_order[0].examples_of(step)[0, 0]) for step in steps), value=value)


def trainer_of(tmp_path, name, source, hooks=(), **settings):
    how = {"steps": STEPS, "global_batch_size": BATCH, "chunk_steps": 5, "log_every": 10, "checkpoint_every": 10}
    return make(tmp_path, name, source=source, hooks=[Counted(15), *hooks], **{"task": Pair, **how, **settings})


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
    """Returns the end of a run: weights, the position in the data, other state, and metric lines."""
    manifest = newest(trainer)
    timed = ("examples_per_second", "step_seconds", "data_wait")
    lines = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    lines = [{key: x for key, x in line.items() if key not in timed} for line in lines]
    return {path: x.sha256 for path, x in manifest.variables.items()}, manifest.examples, dict(manifest.extra), lines


def led(trainer, *parts):
    """Takes these steps alone, `(begin, end)` or `(begin, end, skipped)`; returns the weights."""
    for begin, end, *passed in parts:
        trainer.input.origin = sum(passed) * BATCH
        trainer.state.advance(begin)
        pass_steps(trainer, end)
    return weights(trainer)


def leading(tmp_path_factory):
    """A fixture: takes steps alone from the beginning of a run without bad examples, traced once."""
    trainer = trainer_of(tmp_path_factory.mktemp("around"), "run", source(), steps=120)
    first = weights(trainer)

    def lead(*parts):
        for path, variable in trainer.state.variables.items():
            variable.assign(first[path])
        return led(trainer, *parts)

    return lead


def copy_at_save(trainer, due):
    """Copies the workdir after the first save for which `due` holds, as a kill at that moment would leave it."""
    save, folder = trainer.state.save, trainer.workdir.path.with_name("killed")

    def saving(**arguments):
        save(**arguments)
        if due(trainer.state) and not folder.exists():
            trainer.settle()
            shutil.copytree(trainer.workdir.path, folder)

    trainer.state.save = saving


def weights(trainer):
    return {path: v.numpy() for path, v in trainer.state.variables.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
