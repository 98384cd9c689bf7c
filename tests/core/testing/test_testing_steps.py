"""Step assertions where they can't judge, and their lack of side effects.

`tests/planted` shows that they catch mistakes, and pass right steps.
"""

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.module import named_variables
from core.optimizers import adamw
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import (
    assert_all_trained,
    assert_causal,
    assert_gradients,
    assert_padding,
    assert_rows,
    assert_step_function,
    assert_task,
)

X = np.random.RandomState(0).standard_normal([5, 4]).astype("float32")
BATCH = {"x": X, "weight": np.array([1, 1, 0, 2, 1], "float32")}


class Line(Task):
    frozen = ()

    def __init__(self):
        super().__init__()
        self.net, self.scale = layers.Linear(4, 1, rng=Rng.from_seed(0)), layers.Linear(1, 1, rng=Rng.from_seed(1))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=adamw(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.square(self.scale(self.net(batch["x"]))[:, 0] * rng.progress - 1.0), weight=batch["weight"])


class Frozen(Line):
    frozen = ("scale",)


def test_no_variable_keeps_what_an_assertion_did_to_it():
    task = Frozen()
    before = {path: v.numpy() for path, v in named_variables(task).items()}
    assert_task(task, BATCH)
    for path, variable in named_variables(task).items():
        assert before[path].tobytes() == variable.numpy().tobytes(), path


def test_frozen_parts_need_not_be_trained():
    assert_all_trained(Frozen(), BATCH)
    with pytest.raises(AssertionError, match=r"no phase of `Line` trains `scale/b`, `scale/w`.*frozen"):
        assert_all_trained(Line(), BATCH)


def test_a_gradient_of_zero_may_be_excepted_by_its_path():
    class Zero(Frozen):
        def loss(self, batch, rng):
            return Loss(tf.square(tf.nn.relu(self.net(batch["x"]) - 1e3)[:, 0]) + batch["x"][:, 0])

    with pytest.raises(AssertionError, match=r"the gradient of `[bw]` in phase `net` is zero everywhere.*except_for="):
        assert_gradients(Zero(), {"x": X})
    assert_gradients(Zero(), {"x": X}, except_for=["[bw]"])


def test_batches_that_show_too_little_are_refused():
    class Weighed(Frozen):
        def loss(self, batch, rng):
            x = tf.zeros([batch["weight"].shape[0], 4]) + batch["weight"][:, None]
            return Loss(tf.square(self.net(x)[:, 0]))

    few = {key: x[:2] for key, x in BATCH.items()}
    for says, check, batch, arguments in [
        ("`mask` isn't in the batch", assert_padding, BATCH, ["mask"]),
        (r"`weight` of shape \[2\] leaves out nothing", assert_padding, few, ["weight"]),
        ("`x` holds lengths, but no feature", assert_padding, {**BATCH, "x": np.arange(5)}, ["x"]),
        ("the batch has 2 rows; give at least 3", assert_rows, few, []),
        (r"`weight` has shape \(5,\); causality is about a feature", assert_causal, BATCH, ["weight"]),
    ]:
        with pytest.raises(AssertionError, match=says):
            check(Weighed(), batch, *arguments)


def test_batch_mean_gets_the_advice_to_return_one_loss_per_row():
    with pytest.raises(AssertionError, match="Return one loss per row, without a mean, sum or norm over the batch"):
        assert_step_function(lambda b, rng: Loss(b["weight"] - tf.reduce_mean(b["weight"])), BATCH)
