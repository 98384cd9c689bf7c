"""Local steps: replicas that train apart, and meet once a round."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from local_lab import DATA, STEPS, Local

from core import layers
from core.optimizers import (
    adam,
    adamw,
    chain,
    ema,
    linear,
    lookahead,
    muon,
    reduce_on_plateau,
    sam,
    schedule_free_adamw,
    sgd,
    shampoo,
)
from core.task import Compute, Loss, Task, Update
from core.task.statistics import Statistics


class Line(Task):
    """Fits a line."""

    optimizer = sgd(0.1)

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 1, rng=rng.fold("net"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        return Loss(tf.square(self.net(batch["x"])[:, 0] - batch["y"]))


class AdamLine(Line):
    optimizer = adamw(0.03)


class Weighted(AdamLine):
    """Its rows have unlike weight."""

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
    """Trains a network through what a `Compute` makes of it."""

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
        return Loss(tf.square(self.head(batch["features"])[:, 0] - batch["y"]))


class Words(Task):
    """Touches few rows of a table, whose gradients stay slices."""

    def __init__(self, *, rng):
        super().__init__()
        self.table = layers.Embedding(2048, 3, rng=rng.fold("table"))

    def phases(self):
        return [Update("table", loss=self.loss, trains=self.table, optimizer=adamw(0.01))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.table(batch["word"]) - batch["x"]), 1))


class Ruled(Task):
    """Trains by rules that keep more than sums of gradients: counts, matrices, a second copy of the weights, a best."""

    rules = (
        lookahead(adam(0.01), sync_period=3),
        schedule_free_adamw(linear(0.0, 0.01, steps=5)),
        chain(sgd(0.05, momentum=0.9), reduce_on_plateau(factor=0.5, patience=1)),
        chain(adamw(0.01), ema(0.9)),
        sam(sgd(0.05)),
        shampoo(0.05),
        muon(0.02),
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
    """Normalises by the rows of one replica."""

    def __init__(self, *, rng):
        super().__init__()
        self.first = layers.Linear(3, 8, rng=rng.fold("first"))
        self.norm = layers.BatchNorm(8, decay=0.9)
        self.second = layers.Linear(8, 1, rng=rng.fold("second"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.05))]

    def loss(self, batch, rng):
        statistics = Statistics()
        x = tf.nn.tanh(self.norm(self.first(batch["x"]), statistics=statistics))
        return Loss(tf.square(self.second(x)[:, 0] - batch["y"]), statistics=statistics)


def halved(x, replica):
    """The rows of one of two replicas, of [steps, rows, ...] that two microbatches share."""
    steps, rows = x.shape[:2]
    return x.reshape(steps, 2, 2, rows // 4, *x.shape[2:])[:, :, replica].reshape(steps, rows // 2, *x.shape[2:])


def oracle(replicas, local_steps, outer):
    """The algorithm by hand, in float64: loops of the replicas' own, and the mean of where they have come to."""
    found = Local(Line, 1, None).assembly.variables
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


@pytest.mark.parametrize("replicas", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 4))])
@pytest.mark.parametrize("outer", [None, (0.7, 0.9)])
def test_the_algorithm_is_that_of_the_paper(replicas, outer):
    rule = outer and sgd(outer[0], momentum=outer[1], nesterov=True)
    found = Local(Line, replicas, 3, outer=rule).train()
    for key, value in oracle(replicas, 3, outer).items():
        np.testing.assert_allclose(found[f"task/net/{key}"], value, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.long)])
def test_one_step_a_round_with_the_mean_is_synchronous_sgd(replicas):
    found, expected = Local(Line, replicas, 1), Local(Line, replicas, None)
    mine, its = found.train(), expected.train()
    assert mine.keys() == its.keys()
    for path, value in its.items():
        np.testing.assert_allclose(mine[path], value, rtol=1e-6, atol=1e-6, err_msg=path)
    assert found.sums["net/weight"] == expected.sums["net/weight"]
    np.testing.assert_allclose(found.sums["net/loss"], expected.sums["net/loss"], rtol=1e-6)


@pytest.mark.parametrize("local_steps", [1, 4, 12])
def test_there_is_one_collective_a_round(local_steps):
    training = Local(AdamLine, 2, local_steps)
    training.train()
    (only,) = training.collectives
    floats = 3 * (3 + 1) + 1 + local_steps + 3  # weights and two slots, the counter, who was struck, three figures
    assert (only.phase, only.what, only.dtype, only.bytes) == ("round", "variables", "float32", 4 * floats)


@pytest.mark.parametrize(
    "task",
    [
        Words,
        Rarely,
        Normalised,
        *(pytest.param(t, marks=pytest.mark.long) for t in (AdamLine, Weighted, Through, Ruled)),
    ],
)
def test_a_round_ends_in_the_mean_of_trainings_of_the_replicas_own(task):
    """Weights, slots, averages of layers, counts; and the figures are the sums of theirs."""
    met = Local(task, 2, STEPS, microbatches=2)
    found = met.train()
    halves = [{key: halved(x, replica) for key, x in DATA.items()} for replica in range(2)]
    apart = [Local(task, 1, None, data=half, microbatches=2) for half in halves]
    ends = [run.train() for run in apart]
    for path, value in found.items():
        expected = np.mean([end[path] for end in ends], axis=0)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-6, err_msg=path)
    assert any(np.any(ends[0][path] != ends[1][path]) for path in found)
    for name, total in met.sums.items():
        np.testing.assert_allclose(total, sum(run.sums[name] for run in apart), rtol=2e-5, err_msg=name)
    assert len(met.collectives) == 1


def test_what_goes_on_from_between_rounds_has_the_same_bits():
    outer = sgd(0.9, momentum=0.5, nesterov=True)
    whole = Local(AdamLine, 2, 3, outer=outer).train()
    begun, resumed = Local(AdamLine, 2, 3, outer=outer), Local(AdamLine, 2, 3, outer=outer)
    for path, value in begun.train(0, 6).items():
        resumed.variables[path].assign(value)
    for path, value in resumed.train(6).items():
        assert value.tobytes() == whole[path].tobytes(), path


@pytest.mark.parametrize("compile", [False, True])
def test_one_replica_and_the_mean_is_training_as_it_always_is(compile):
    found, expected = (Local(AdamLine, 1, steps, compile=compile).train() for steps in (4, None))
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-6, atol=1e-7, err_msg=path)


def test_compiled_updates_lead_to_the_same_numbers():
    outer = sgd(0.9, momentum=0.5, nesterov=True)
    plain, compiled = (Local(AdamLine, 2, 3, outer=outer, compile=compile).train() for compile in (False, True))
    for path, value in plain.items():
        np.testing.assert_allclose(compiled[path], value, rtol=1e-5, atol=1e-6, err_msg=path)


def test_counts_of_updates_that_differ_go_on_from_their_mean():
    """The second replica's rows have no weight in three of the four steps: its update is skipped there."""
    weight = np.ones_like(DATA["weight"])
    weight[:3, 8:] = 0.0
    training = Local(Weighted, 2, 4, data={**DATA, "weight": weight})
    assert training.train(0, 4)["optimizer/net/step"] == (4 + 1) // 2


@pytest.mark.parametrize(("outer", "replica"), [(None, 0), (sgd(0.7, momentum=0.9), 1)])
def test_what_is_not_finite_on_one_replica_ends_the_round_for_all(outer, replica):
    x = DATA["x"].copy()
    x[7, 8 * replica] = np.inf
    x[8, 8 - 8 * replica] = np.nan  # a later step of the other's
    training = Local(AdamLine, 2, 3, outer=outer, data={**DATA, "x": x})
    expected = Local(AdamLine, 2, 3, outer=outer).train(0, 6)
    found = training.train()
    assert int(training.progress.bad_step) == 7
    for path in ("task/net/w", "task/net/b"):
        for part in training.strategy.experimental_local_results(training.variables[path]):
            assert part.numpy().tobytes() == expected[path].tobytes()
    assert found.keys() == expected.keys()
