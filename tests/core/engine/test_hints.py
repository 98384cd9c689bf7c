"""Hints before the first step about probable mistakes in the trace; correct steps cause none."""

import numpy as np
import pytest
import tensorflow as tf

from core import layers, losses
from core.distribution import one_device
from core.engine import TrainStep, assemble
from core.random import Rng
from core.task import Loss, Update
from tests.toys import Line

FIXED = Rng.from_seed(5)
SPEC = {"x": tf.TensorSpec([1, 4, 3], tf.float32), "y": tf.TensorSpec([1, 4], tf.float32)}


class Told(Line):
    """A line, with its step function."""

    calls = 0
    pool: list[tf.Tensor] = []  # noqa: RUF012

    def __init__(self, *, rng, step):
        super().__init__(rng=rng)
        self.rng, self.kept, self.memo, self.step = FIXED, {}, None, step
        self.hidden = layers.Linear(3, 1, rng=rng)

    def loss(self, batch, rng):
        return self.step(self, batch, rng)

    def phases(self):
        return [Update("net", loss=self.loss, trains=[self.net, self.hidden], optimizer=self.optimizer)]


def remarks(step):
    assembly = assemble(lambda: Told(rng=Rng.from_seed(0), step=step), one_device("CPU:0"))
    return TrainStep(assembly, SPEC, seed=0).remarks


def plain(task, batch, rng, *, x=None, y=None):
    error = task.net(batch["x"] if x is None else x)[:, 0] - (batch["y"] if y is None else y)
    return Loss(tf.square(error) + 0.0 * task.hidden(batch["x"])[:, 0])


def keeps_a_tensor(task, batch, rng):
    task.kept["x"] = batch["x"]
    return plain(task, batch, rng)


def fills_a_pool(task, batch, rng):
    task.pool.append(batch["x"])
    return plain(task, batch, rng)


def counts(task, batch, rng):
    task.calls += 1
    return plain(task, batch, rng)


def draws_by_numpy(task, batch, rng):
    return plain(task, batch, rng, x=batch["x"] + np.random.normal(size=3).astype("float32"))


def draws_by_a_kept_rng(task, batch, rng):
    return plain(task, batch, rng, x=batch["x"] + task.rng.fold("noise").normal([3]))


def halves(task, batch, rng):
    return plain(task, batch, rng, x=tf.cast(tf.cast(batch["x"], tf.float16), tf.float32))


def doubles(task, batch, rng):
    return plain(task, batch, rng, y=tf.cast(tf.cast(batch["y"], tf.float64) * 2.0, tf.float32))


def softmax_twice(task, batch, rng):
    logits = tf.nn.softmax(tf.concat([task.net(batch["x"]), task.hidden(batch["x"])], -1))
    return Loss(losses.softmax_cross_entropy(logits, tf.cast(batch["y"] > 0.0, tf.int32)))


def sigmoid_twice(task, batch, rng):
    loss = losses.sigmoid_cross_entropy(tf.sigmoid(task.net(batch["x"])[:, 0]), tf.cast(batch["y"] > 0.0, tf.float32))
    return Loss(loss + 0.0 * task.hidden(batch["x"])[:, 0])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (keeps_a_tensor, "phase `net` keeps a tensor in `Told.kept['x']`"),
        (fills_a_pool, "phase `net` keeps a tensor in `Told.pool[0]`"),
        (counts, "phase `net` changes `Told.calls` from 0 to 1"),
        (draws_by_numpy, "phase `net` draws from NumPy's generator"),
        (draws_by_a_kept_rng, "phase `net` draws the same random numbers in each step, at test_hints.py:"),
        (halves, "phase `net` computes its loss in float16 at test_hints.py:"),
        (doubles, "phase `net` computes its loss in float64 at test_hints.py:"),
        (softmax_twice, "come from `tf.nn.softmax` at test_hints.py:"),
        (sigmoid_twice, "come from `tf.nn.sigmoid` at test_hints.py:"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_run_tells_what_is_hardly_meant(step, said):
    Told.pool.clear()
    (text,) = remarks(step)
    assert said in text


def draws_by_its_rng(task, batch, rng):
    return plain(task, batch, rng, x=batch["x"] + rng.fold("noise").rows.normal(3))


def remembers_an_array(task, batch, rng):
    if task.memo is None:
        task.memo = np.arange(3, dtype="float32")
    return plain(task, batch, rng, x=batch["x"] * task.memo)


def computes_in_bfloat16(task, batch, rng):
    return plain(task, batch, rng, x=tf.cast(tf.cast(batch["x"], tf.bfloat16), tf.float32))


def measures_in_float64(task, batch, rng):
    loss = plain(task, batch, rng)
    return loss._replace(metrics={"wide": tf.cast(tf.cast(loss.per_example, tf.float64) * 2.0, tf.float32)})


def weighs_by_a_softmax(task, batch, rng):
    weights = tf.nn.softmax(batch["x"])
    return plain(task, batch, rng, x=weights * batch["x"])


@pytest.mark.parametrize(
    "step",
    [plain, draws_by_its_rng, remembers_an_array, computes_in_bfloat16, measures_in_float64, weighs_by_a_softmax],
    ids=lambda x: x.__name__,
)
def test_right_steps_get_no_hint(step):
    assert remarks(step) == []
