"""Local steps: replicas train separately and are averaged once a round; long for the optimizers and oracles."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from chunk_lab import DATA, ROWS, STEPS, Training

from core import layers
from core.module import Module
from core.optimizers import (
    adamw,
    chain,
    lbfgs,
    linear,
    muon,
    prodigy,
    reduce_on_plateau,
    sam,
    schedule_free_adamw,
    sgd,
    shampoo,
)
from core.task import Compute, Loss, Task, Update
from core.task.statistics import Statistics
from tests.toys import Line


class AdamLine(Line):
    optimizer = adamw(0.03)


class Weighted(AdamLine):
    """Its rows have unequal weights."""

    def loss(self, batch, rng):
        return super().loss(batch, rng)._replace(weight=batch["weight"])


class Rarely(Task):
    """Phases that aren't due in every step, nor always together."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 4, rng=rng.fold("net"))
        self.head = layers.Linear(4, 1, rng=rng.fold("head"))

    def phases(self):
        return [
            Update("net", loss=self.net_loss, trains=self.net, optimizer=sgd(0.01), every=3),
            Compute("features", lambda batch, rng: {"features": self.net(batch["x"])}, every=2),
            Update("head", loss=self.head_loss, trains=self.head, optimizer=adamw(0.01), every=2),
        ]

    def head_loss(self, batch, rng):
        return Loss(tf.square(self.head(batch["features"])[:, 0] - batch["y"]))

    def net_loss(self, batch, rng):
        return Loss(tf.square(self.head(tf.nn.tanh(self.net(batch["x"])))[:, 0] - batch["y"]))


class Through(Task):
    """Trains a network through a `Compute`'s output, by rows of unequal weights."""

    frozen = ("head",)

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 4, rng=rng.fold("net"))
        self.head = layers.Linear(4, 1, rng=rng.fold("head"))

    def phases(self):
        return [
            Compute("features", lambda batch, rng: {"features": self.net(batch["x"])}),
            Update("net", loss=self.loss, trains=self.net, optimizer=adamw(0.01), through="features"),
        ]

    def loss(self, batch, rng):
        return Loss(tf.square(self.head(batch["features"])[:, 0] - batch["y"]), weight=batch["weight"])


class Ruled(Task):
    """Uses optimizers that keep more than sums of gradients: counts, matrices, copies of the weights, a best."""

    rules = (
        schedule_free_adamw(linear(0.0, 0.01, steps=5)),
        chain(sgd(0.05, momentum=0.9), reduce_on_plateau(factor=0.5, patience=1)),
        sam(sgd(0.05)),
        shampoo(0.05),
        prodigy(d_0=0.01),
        lbfgs(0.05, memory_size=3),
    )

    def __init__(self, *, rng):
        super().__init__()
        self.nets = [layers.Linear(3, 4, rng=rng.fold(f"net_{i}")) for i in range(len(self.rules))]

    def phases(self):
        return [
            Update(f"net_{i}", loss=functools.partial(self.loss, net), trains=net, optimizer=rule, every=1 + i % 2)
            for i, (net, rule) in enumerate(zip(self.nets, self.rules, strict=True))
        ]

    def loss(self, net, batch, rng):
        return Loss(tf.square(tf.reduce_sum(tf.nn.tanh(net(batch["x"])), 1) - batch["y"]))


class Normalised(Task):
    """Normalises by the rows of one replica, and reads few rows of a table, whose gradients stay slices.

    Its last layer is trained in every second step only.
    """

    def __init__(self, *, rng):
        super().__init__()
        self.first, self.table = layers.Linear(3, 8, rng=rng.fold("first")), layers.Embedding(2048, 8, rng=rng.fold(0))
        self.norm = layers.BatchNorm(8, decay=0.9)
        self.second = layers.Linear(8, 1, rng=rng.fold("second"))

    def phases(self):
        return [
            Update("net", loss=self.loss, trains=[self.first, self.table, self.norm], optimizer=sgd(0.05)),
            Update("head", loss=self.head_loss, trains=self.second, optimizer=adamw(0.01), every=2),
        ]

    def head_loss(self, batch, rng):
        return Loss(tf.square(self.second(tf.nn.tanh(self.first(batch["x"])))[:, 0] - batch["y"]))

    def loss(self, batch, rng):
        statistics = Statistics()
        x = self.first(batch["x"]) + self.table(batch["word"])
        x = tf.nn.tanh(self.norm(x, statistics=statistics))
        return Loss(tf.square(self.second(x)[:, 0] - batch["y"]), statistics=statistics)


def halved(x, replica):
    """Returns the rows of one of two replicas, of [steps, rows, ...] in two microbatches."""
    steps, rows = x.shape[:2]
    return x.reshape(steps, 2, 2, rows // 4, *x.shape[2:])[:, :, replica].reshape(steps, rows // 2, *x.shape[2:])


def oracle(replicas, local_steps, outer):
    """The algorithm in float64, by hand: a loop per replica, and the mean of their results."""
    found = Training(Line, 1).assembly.variables
    anchor = {key: found[f"task/net/{key}"].numpy().astype("f8") for key in "wb"}
    momentum = {key: np.zeros_like(x) for key, x in anchor.items()}
    for first in range(0, STEPS, local_steps):
        ends = []
        for replica in range(replicas):
            w, b = anchor["w"].copy(), anchor["b"].copy()
            for i in range(first, first + local_steps):
                x, y = (np.split(DATA[key][i].astype("f8"), replicas)[replica] for key in "xy")
                error = 2.0 * (x @ w[:, 0] + b[0] - y) / len(y)
                w -= 0.1 * (x.T @ error)[:, None]
                b -= 0.1 * error.sum()
            ends.append({"w": w, "b": b})
        for key in anchor:
            mean = np.mean([end[key] for end in ends], axis=0)
            if outer is None:
                anchor[key] = mean
                continue
            rate, decay = outer
            way_back = anchor[key] - mean
            momentum[key] = decay * momentum[key] + way_back
            anchor[key] = anchor[key] - rate * (decay * momentum[key] + way_back)
    return anchor


OUTER = (0.7, 0.9)


@functools.cache
def by_rounds(task, replicas, outer=None):
    """Traces rounds of three steps once for several tests, each of which begins with `restart`."""
    return Training(task, replicas, 3, outer=outer and sgd(outer[0], momentum=outer[1], nesterov=True))


@pytest.mark.parametrize("outer", [None, OUTER])
def test_the_algorithm_is_that_of_the_paper(outer):
    found = by_rounds(Line, 2, outer).restart().train()
    for key, value in oracle(2, 3, outer).items():
        np.testing.assert_allclose(found[f"task/net/{key}"], value, rtol=2e-6, atol=2e-6)


def assert_one_collective(training, parameters, slots, local_steps):
    (only,) = training.collectives
    floats = (1 + slots) * parameters + 1 + local_steps + 3  # the counter, who was struck, three figures
    assert (only.phase, only.what, only.dtype, only.bytes) == ("round", "variables", "float32", 4 * floats)


@pytest.mark.long
def test_one_step_a_round_with_the_mean_is_synchronous_sgd():
    found, expected = Training(Line, 2, 1), Training(Line, 2)
    mine, its = found.train(), expected.train()
    assert mine.keys() == its.keys()
    for path, value in its.items():
        np.testing.assert_allclose(mine[path], value, rtol=1e-6, atol=1e-6, err_msg=path)
    assert found.sums["net/weight"] == expected.sums["net/weight"]
    np.testing.assert_allclose(found.sums["net/loss"], expected.sums["net/loss"], rtol=1e-6)
    assert_one_collective(found, 3 + 1, slots=0, local_steps=1)


@pytest.mark.parametrize(
    "task", [Normalised, *(pytest.param(t, marks=pytest.mark.long) for t in (Rarely, Through, Ruled))]
)
def test_a_round_ends_in_the_mean_of_trainings_of_the_replicas_own(task):
    """Compares weights, slots, layers' averages and counts; the metrics are the sums of the replicas'."""
    met = Training(task, 2, STEPS, microbatches=2)
    found = met.train()
    halves = [{key: halved(x, replica) for key, x in DATA.items()} for replica in range(2)]
    alone = Training(task, 1, data=halves[0], microbatches=2)
    ends, sums = [], []
    for half in halves:
        alone.restart(half)
        ends.append(alone.train())
        sums.append(alone.sums)
    for path, value in found.items():
        expected = np.mean([end[path] for end in ends], axis=0)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-6, err_msg=path)
    assert any(np.any(ends[0][path] != ends[1][path]) for path in found)
    for name, total in met.sums.items():
        np.testing.assert_allclose(total, sum(each[name] for each in sums), rtol=2e-5, err_msg=name)
    assert len(met.collectives) == 1


class Orthogonal(Task):
    """Trains a matrix by Muon."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 4, rng=rng.fold("net"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=muon(0.02))]

    def loss(self, batch, rng):
        return Loss(tf.square(tf.reduce_sum(tf.nn.tanh(self.net(batch["x"])), 1) - batch["y"]))


@pytest.mark.long
def test_muon_within_rounds_and_nesterov_between_them():
    """Outer SGD moves the weights along the replicas' mean change; Muon's momentum is averaged."""
    rate, decay = OUTER
    outer = sgd(rate, momentum=decay, nesterov=True)
    found = Training(Orthogonal, 2, 3, outer=outer, microbatches=2).train()
    halves = [{key: halved(x, replica) for key, x in DATA.items()} for replica in range(2)]
    alone, momentum = Training(Orthogonal, 1, data=halves[0], microbatches=2), {}
    values = alone.initial
    for first in range(0, STEPS, 3):
        ends = [alone.restart(half, values).train(first, first + 3) for half in halves]
        means = {path: np.mean([end[path] for end in ends], axis=0).astype(x.dtype) for path, x in values.items()}
        for path in ("task/net/w", "task/net/b"):
            way_back = values[path] - means[path]
            momentum[path] = decay * momentum.get(path, 0.0) + way_back
            means[path] = values[path] - rate * (decay * momentum[path] + way_back)
        values = means
    for path, value in values.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=2e-6, err_msg=path)


@pytest.mark.long
def test_run_resumed_between_rounds_has_the_same_bits():
    """A run hands on its variables alone: state elsewhere would be that of the whole run's end."""
    training = by_rounds(AdamLine, 2, OUTER).restart()
    middle = training.train(0, 6)
    training.restart()
    whole = training.train()
    training.restart(values=middle)
    for path, value in training.train(6).items():
        assert value.tobytes() == whole[path].tobytes(), path
    assert_one_collective(training, 3 + 1, slots=2, local_steps=3)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.long)])
def test_one_replica_and_the_mean_is_training_as_it_always_is(compile):
    found, expected = (Training(AdamLine, 1, steps, compile=compile).train() for steps in (4, None))
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-6, atol=1e-7, err_msg=path)


@pytest.mark.long
def test_compiled_updates_lead_to_the_same_numbers():
    compiled = Training(Line, 2, 3, outer=sgd(OUTER[0], momentum=OUTER[1], nesterov=True), compile=True).train()
    for key, value in oracle(2, 3, OUTER).items():
        np.testing.assert_allclose(compiled[f"task/net/{key}"], value, rtol=2e-6, atol=2e-6)


@pytest.mark.long
def test_different_update_counts_resume_from_their_mean():
    """The second replica's rows have no weight in three of the four steps: its update is skipped there."""
    weight = np.ones_like(DATA["weight"])
    weight[:3, 8:] = 0.0
    training = Training(Weighted, 2, 4, data={**DATA, "weight": weight})
    assert training.train(0, 4)["optimizer/net/step"] == (4 + 1) // 2


@pytest.mark.parametrize(("outer", "replica"), [(None, 0), (OUTER, 1)])
def test_step_that_is_not_finite_on_one_replica_ends_the_round_for_all(outer, replica):
    x = DATA["x"].copy()
    x[7, 8 * replica] = np.inf
    x[8, 8 - 8 * replica] = np.nan  # a later step of the other's
    training = by_rounds(Line, 2, outer).restart()
    expected = training.train(0, 6)
    training.restart({**DATA, "x": x})
    training.train()
    training.give(DATA)
    assert int(training.progress.bad_step) == 7
    for path in ("task/net/w", "task/net/b"):
        for part in training.strategy.experimental_local_results(training.variables[path]):
            assert part.numpy().tobytes() == expected[path].tobytes()


class Numbers(Module):
    """Holds more digits than float32 has, and a number whose sum over two replicas exceeds float16."""

    def __init__(self):
        super().__init__()
        self.fine = tf.Variable(tf.constant(1.0 / 3.0, tf.float64), name="fine")
        self.large = tf.Variable(tf.constant(4e4, tf.float16), name="large")


class Rows(NamedTuple):
    """Counts rows as integers."""

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


@pytest.mark.long
def test_means_are_as_wide_as_the_weights_are_and_counts_stay_whole():
    halves = np.split(np.arange(ROWS), 2)
    parts = [{key: x[:, half] for key, x in DATA.items()} for half in halves]
    alone, ends = Training(Wide, 1, data=parts[0]), []
    for part in parts:
        alone.restart(part)
        ends.append(alone.train())
    met = Training(Wide, 2, STEPS)
    found = met.train()
    for name in ("fine", "large"):
        one, other = (float(end[f"task/net/{name}"]) for end in ends)
        np.testing.assert_allclose(found[f"task/net/{name}"], (one + other) / 2, rtol=1e-14)
    assert ends[0]["task/net/fine"] != ends[1]["task/net/fine"]
    rows = met.progress.read_sums()["net"]["rows"].rows
    assert (rows.dtype, int(rows)) == (tf.int64, STEPS * ROWS)
