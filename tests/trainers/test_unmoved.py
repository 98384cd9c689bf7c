"""A run warns once about half-precision parameters whose updates round to nothing, and checks no others."""

import functools

import pytest
import tensorflow as tf

from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update
from core.telemetry import Telemetry
from core.testing import on_virtual_cpus
from tests.trainers.trainer_lab import make


class Pair(Module):
    def __init__(self, dtype, value):
        super().__init__()
        self.w = tf.Variable(tf.fill([3], tf.cast(value, dtype)), name="w")
        self.b = tf.Variable(0.0, name="b")


class Falling(Task):
    """Moves each element of `w` by a third of the rate in a step that is due, and `b` by all of it."""

    def __init__(self, *, rng, dtype, value, rate, every=1):
        super().__init__()
        self.net, self.rate, self.every = Pair(dtype, value), rate, every

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(self.rate), every=self.every)]

    def loss(self, batch, rng):
        return Loss(0.0 * batch["y"] + tf.reduce_mean(tf.cast(self.net.w, tf.float32)) + self.net.b)


def told(tmp_path, *, strategy=None, chunk_steps=5, **how):
    task = functools.partial(Falling, **{"dtype": tf.bfloat16, "value": 1.0, "rate": 1e-3, **how})
    trainer = make(tmp_path, task=task, strategy=strategy, steps=10, chunk_steps=chunk_steps, log_every=10)
    said, telemetry = [], Telemetry([])
    telemetry.warn_once = said.append
    trainer.train(telemetry)
    return [text for text in said if "didn't change" in text]


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "rate", "replicas"), [(tf.bfloat16, 1e-3, 2), (tf.float16, 3e-4, 1)])
def test_half_precision_that_no_step_moves_is_reported_once(dtype, rate, replicas, tmp_path):
    (text,) = told(tmp_path, dtype=dtype, rate=rate, strategy=on_virtual_cpus(replicas))
    assert text.startswith(f"phase `net` didn't change `w` in 5 steps: it is {dtype.name}, and an update")


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [{"rate": 1.0}, {"value": 0.0}, {"dtype": tf.float32}],
    ids=["large enough", "from zero", "float32"],
)
def test_parameters_that_move_are_not_reported(how, tmp_path):
    assert told(tmp_path, **how) == []


def test_phase_that_is_not_due_yet_is_waited_for(tmp_path):
    (text,) = told(tmp_path, chunk_steps=2, every=2, value=256.0, rate=1.0)
    assert "in 1 step:" in text
