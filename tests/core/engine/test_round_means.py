"""Means at the end of a round of local steps, of what isn't float32."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from local_lab import DATA, ROWS, STEPS, Local

from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update


class Numbers(Module):
    """Holds more digits than float32 has, and a number whose sum over two replicas is beyond float16."""

    def __init__(self):
        super().__init__()
        self.fine = tf.Variable(tf.constant(1.0 / 3.0, tf.float64), name="fine")
        self.large = tf.Variable(tf.constant(4e4, tf.float16), name="large")


class Rows(NamedTuple):
    """Counts rows, in whole numbers."""

    rows: tf.Tensor

    def result(self):
        return tf.cast(self.rows, tf.float32)


class Wide(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.net = Numbers()

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        fine, large = (tf.cast(x, tf.float32) for x in (self.net.fine, self.net.large))
        loss = tf.square(fine * batch["x"][:, 0] + 1e-5 * large - batch["y"])
        return Loss(loss, metrics={"rows": Rows(tf.size(loss, tf.int64))})


def test_means_are_as_wide_as_the_weights_are_and_counts_stay_whole():
    halves = np.split(np.arange(ROWS), 2)
    ends = [Local(Wide, 1, None, data={key: x[:, half] for key, x in DATA.items()}).train() for half in halves]
    met = Local(Wide, 2, STEPS)
    found = met.train()
    for name in ("fine", "large"):
        one, other = (float(end[f"task/net/{name}"]) for end in ends)
        np.testing.assert_allclose(found[f"task/net/{name}"], (one + other) / 2, rtol=1e-14)
    assert ends[0]["task/net/fine"] != ends[1]["task/net/fine"]
    rows = met.progress.read_sums()["net"]["rows"].rows
    assert (rows.dtype, int(rows)) == (tf.int64, STEPS * ROWS)
