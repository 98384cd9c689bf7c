"""Each assertion passes right tasks and catches the mistake that it names."""

import functools

import pytest
import tensorflow as tf

from core import layers
from core.optimizers import adamw, sgd
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import assert_overfits, assert_step_function, assert_updates_only

X = tf.reshape(tf.range(24, dtype=tf.float32), [8, 3]) / 24.0
BATCH = {"x": X, "y": tf.reduce_sum(X, 1)}


class Line(Task):
    def __init__(self, rule=None):
        super().__init__()
        self.net, self.other = layers.Linear(3, 1, rng=Rng.from_seed(0)), layers.Linear(3, 1, rng=Rng.from_seed(1))
        self.rule = rule or adamw(0.05, weight_decay=0.0)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.rule)]

    def loss(self, batch, rng):
        noise = 0.01 * rng.rows.normal(*batch["x"].shape)
        return Loss(tf.square(self.net(batch["x"] + noise)[:, 0] - batch["y"]), metrics={"x": batch["x"][:, 0]})


@pytest.mark.long
def test_right_step_functions_pass():
    task = Line()
    assert assert_step_function(task.loss, BATCH).per_example.shape == [8]
    assert_step_function(functools.partial(task.loss), BATCH)
    assert_step_function(lambda b, rng: Loss(1e6 * tf.square(task.net(b["x"])[:, 0])), BATCH)
    assert_updates_only(task, "net", task.net, BATCH)
    assert_overfits(Line(), BATCH)


def test_rows_without_weight_may_be_anything():
    weight = tf.constant([0.0] + [1.0] * 7)
    assert_step_function(
        lambda b, rng: Loss(tf.where(weight > 0, b["y"], float("nan")), weight), BATCH, mixes_rows=True
    )


WRONG = {
    "isn't finite": lambda b, rng: Loss(tf.math.log(b["x"][:, 0])),
    "a second call": lambda b, rng: Loss(b["y"] + tf.random.uniform([])),
    "row 0 alone": lambda b, rng: Loss(b["y"] - tf.reduce_mean(b["y"])),
    "`outputs` changed": lambda b, rng: Loss(b["y"], outputs={"z": tf.random.uniform([8])}),
}


@pytest.mark.parametrize("says", WRONG)
def test_wrong_step_functions_are_caught(says):
    with pytest.raises(AssertionError, match=says):
        assert_step_function(WRONG[says], BATCH)


def test_randomness_that_isn_t_by_row_is_caught():
    with pytest.raises(AssertionError, match=r"rng.rows"):
        assert_step_function(lambda b, rng: Loss(b["y"] + rng.normal([b["y"].shape[0]])), BATCH)


def test_mixed_rows_may_be_declared():
    assert_step_function(lambda b, rng: Loss(b["y"] - tf.reduce_mean(b["y"])), BATCH, mixes_rows=True)


def test_an_update_of_the_wrong_module_is_caught():
    task = Line()
    with pytest.raises(AssertionError, match="changed `net/b`, which isn't part of the module it should train"):
        assert_updates_only(task, "net", task.other, BATCH)
    both = tf.Module()
    both.parts = [task.net, task.other]
    with pytest.raises(AssertionError, match="left `other/b` as it was"):
        assert_updates_only(task, "net", both, BATCH)
    with pytest.raises(AssertionError, match="there is no update `nte`; the task has `net`"):
        assert_updates_only(task, "nte", task.net, BATCH)


def test_a_parameter_that_the_loss_ignores_is_caught():
    class Unused(Line):
        def phases(self):
            return [Update("net", loss=self.loss, trains=self, optimizer=adamw(0.1, weight_decay=0.1))]

    task = Unused()
    with pytest.raises(AssertionError, match=r"other/w.* doesn't depend"):
        assert_updates_only(task, "net", task, BATCH)


def test_a_task_that_can_t_learn_is_caught():
    with pytest.raises(AssertionError, match="not below"):
        assert_overfits(Line(sgd(0.0)), BATCH, steps=5)
    with pytest.raises(AssertionError, match="`steps` is 1"):
        assert_overfits(Line(), BATCH, steps=1)
