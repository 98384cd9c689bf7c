"""An evaluation that compares examples compares those of the whole batch, on any number of replicas."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from core import layers, losses, metrics
from core.data import ArraySource
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.task import Loss, Statistics, Task, Update, all_rows, own_rows
from core.testing import on_virtual_cpus
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment

BATCH = 9  # of 21 examples: 9, 9 and 3, which four replicas hold as 3, 3, 3, 0 and 3, 0, 0, 0


class Contrast(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 4, rng=rng)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1), mixes_rows=True)]

    def loss(self, batch, rng):
        return Loss(losses.nt_xent(self.net(batch["x"]), self.net(batch["y"])))

    def evaluate(self, batch):
        """Has a weight, a metric by row, an additive one, and 1 / 0 if there is no row."""
        loss = self.loss(batch, None)
        number = tf.cast(batch["number"], tf.float32)
        all_numbers = all_rows(number)
        places = tf.cast(own_rows(tf.range(tf.shape(all_numbers)[0])), tf.float32)
        nothing = 0.0 / tf.cast(tf.shape(number)[0], tf.float32)
        named = {
            "sum": tf.fill(tf.shape(number), tf.reduce_sum(all_numbers)) + nothing,
            "misplaced": tf.abs(number - tf.reduce_min(all_numbers) - places),
            "mean": metrics.Mean.of(number + nothing),
        }
        return loss._replace(weight=1.0 + number, metrics=named)


def source():
    random = np.random.RandomState(0)
    x, y = random.randn(2, 21, 3).astype("float32")
    return ArraySource({"x": x, "y": y, "number": np.arange(21, dtype="int32")}, name="pairs")


@functools.cache
def evaluated(task, replicas):
    experiment = Experiment(task=task, train_source=source(), strategy=on_virtual_cpus(replicas))
    return Evaluator(experiment, source(), global_batch_size=BATCH).evaluate(), experiment


def in_float64(net):
    """Returns the weighted mean of the loss over batches of 9, 9 and 3, by its definition."""
    w, b = (v.numpy().astype("float64") for v in (net.w, net.b))
    data, total, weight = source().gather(tf.range(21, dtype=tf.int64)), 0.0, 0.0
    for first in range(0, 21, BATCH):
        x, y, number = (data[key].numpy()[first : first + BATCH] for key in ("x", "y", "number"))
        views = np.concatenate([x, y]).astype("float64") @ w + b
        views /= np.linalg.norm(views, axis=1, keepdims=True)
        near = np.exp(views @ views.T / 0.5)
        np.fill_diagonal(near, 0.0)
        n = len(x)
        keys = (np.arange(2 * n) + n) % (2 * n)
        costs = -np.log(near[np.arange(2 * n), keys] / near.sum(1))
        total += np.sum((1.0 + number) * (costs[:n] + costs[n:]) / 2.0)
        weight += np.sum(1.0 + number)
    return total / weight


@pytest.mark.long
def test_figures_are_those_of_whole_batches_without_padding():
    figures, experiment = evaluated(Contrast, 4)
    assert figures["loss"] == pytest.approx(in_float64(experiment.task.net), rel=1e-6)
    assert figures["misplaced"] == 0.0
    assert figures["mean"] == pytest.approx(10.0)
    for name, x in evaluated(Contrast, 1)[0].items():
        assert figures[name] == pytest.approx(x, rel=1e-6), name


class Nearest(Contrast):
    """Searches for the nearest of all rows: there must be one."""

    def evaluate(self, batch):
        z, every = batch["x"], all_rows(batch["x"])
        nearest = tf.argmin(tf.reduce_sum(tf.square(z[:, tf.newaxis] - every), -1), -1, output_type=tf.int32)
        found = tf.equal(nearest, own_rows(tf.range(tf.shape(every)[0])))
        return Loss(tf.zeros_like(z[:, 0]), metrics={"found": tf.cast(found, tf.float32)})


def test_chunk_may_end_in_empty_batches():
    experiment = Experiment(task=Nearest, train_source=source(), strategy=on_virtual_cpus(2))
    evaluator = Evaluator(experiment, source(), global_batch_size=1)  # 21 batches, in two chunks of 11
    assert evaluator.evaluate() == {"loss": 0.0, "found": 1.0}


class Alone(Contrast):
    """Its training gathers, its evaluation doesn't."""

    def evaluate(self, batch):
        z = self.net(batch["x"])
        return Loss(tf.reduce_sum(tf.square(z - tf.reduce_mean(z, 0)), 1))


class Apart(Contrast):
    def evaluate(self, batch):
        return Loss(tf.reduce_sum(tf.square(self.net(batch["x"])), 1))


class Views(Contrast):
    def evaluate(self, batch):
        z = self.net(batch["x"])
        return Loss(tf.reduce_sum(tf.matmul(z, all_rows(tf.concat([z, z], 0)), transpose_b=True), 1))


@pytest.mark.long
def test_evaluation_that_mixes_rows_within_each_replica_is_refused():
    evaluated(Alone, 1)
    with pytest.raises(ConfigurationError, match=r"`evaluate` mixes rows.*`all_rows\(x\)`"):
        evaluated(Alone, 2)
    figures, experiment = evaluated(Apart, 2)
    x = source().gather(tf.range(21, dtype=tf.int64))["x"]
    assert figures["loss"] == pytest.approx(np.mean(np.sum(experiment.task.net(x).numpy() ** 2, 1)), rel=1e-6)


class MetricAlone(Apart):
    """Measures in which rows the other view is nearest among one replica's rows."""

    def evaluate(self, batch):
        z = self.net(batch["x"])
        places = tf.argmax(tf.matmul(z, self.net(batch["y"]), transpose_b=True), 1)
        found = places == tf.range(tf.shape(z)[0], dtype=tf.int64)
        return super().evaluate(batch)._replace(metrics={"found": tf.cast(found, tf.float32)})


class WeightAlone(Apart):
    def evaluate(self, batch):
        return super().evaluate(batch)._replace(weight=tf.nn.softmax(batch["x"][:, 0]))


class LaterRowsAlone(Apart):
    """Later rows depend on the first; the first depends on none."""

    def evaluate(self, batch):
        return Loss(tf.cumsum(super().evaluate(batch).per_example))


@pytest.mark.parametrize(
    ("task", "says"), [(MetricAlone, "the metric `found`"), (WeightAlone, "the weight"), (LaterRowsAlone, "the loss")]
)
def test_mixed_rows_are_found_in_loss_weight_and_metrics(task, says):
    with pytest.raises(ConfigurationError, match=f"`evaluate` mixes rows: {says} of an example"):
        evaluated(task, 2)


def test_evaluation_that_gathers_other_rows_than_its_batch_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="`evaluate` asks for `all_rows` of another number"):
        evaluated(Views, 2)


class ByItsBatch(Contrast):
    """Its evaluation returns statistics, as its training does."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.norm = layers.BatchNorm(3, scale=False, offset=False)

    def evaluate(self, batch):
        return Loss(tf.reduce_sum(self.norm(batch["x"], statistics=Statistics()), 1))


def test_evaluation_that_normalises_by_its_batch_is_refused():
    with pytest.raises(ConfigurationError, match=r"passes `Statistics` to a `BatchNorm`.*`Evaluator.global_batch_"):
        evaluated(ByItsBatch, 1)
