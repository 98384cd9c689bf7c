"""Phases on one device give the same numbers as phases on every replica."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import REAL, ROWS, Gan, assert_same, train

from core.distribution.ledger import FIGURES, GRADIENTS, VALUES
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import sgd
from core.task import EVERY_REPLICA, ONE_DEVICE, Compute, Loss, Task, Update, when_batch_at_least
from models.classifiers.mlp import Mlp


def placed(*places, **attributes):
    return type("PlacedGan", (Gan,), {"places": places, **attributes})


E, ONE = EVERY_REPLICA, ONE_DEVICE
FEWER, ENOUGH = when_batch_at_least(ROWS + 1), when_batch_at_least(ROWS)
LONG = [
    ("generator and its loss on one device", (ONE, E, ONE), 4, 2, 1),
    ("all on one device", (ONE, ONE, ONE), 2, 1, 1),
    ("by batch size, below", (FEWER, FEWER, FEWER), 4, 1, 1),
    ("discriminator on one device", (E, ONE, E), 2, 2, 2),
]
PLACES = [
    ("by batch size", (ENOUGH, FEWER, FEWER), 2, 1, 2),
    *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
]


@functools.cache
def reference(task=Gan):
    return train(task, REAL, 1, 1)


def assert_as_placed(places, replicas, microbatches, copies, **attributes):
    """The numbers are those of one replica, and the forward pass under a gradient is traced once per copy."""
    task = placed(*places, passes=[], **attributes)
    found = train(task, REAL, replicas, microbatches)
    assert_same(found, reference())
    assert len(task.passes) == 1 + copies  # once more when the step was planned
    return [(entry.phase, entry.what) for entry in found[1].exchange.ledger.collectives]


@pytest.mark.parametrize(("name", "places", "replicas", "microbatches", "copies"), PLACES)
def test_every_placement_gives_the_same_numbers(name, places, replicas, microbatches, copies):
    assert_as_placed(places, replicas, microbatches, copies)


def test_a_generator_on_one_device_costs_the_others_nothing():
    kinds = assert_as_placed((ONE, E, E), 2, 2, 1, one_device=("g",))
    # Its gradients aren't sent; the discriminator's gradients by the fakes are.
    assert kinds == [("d", VALUES), ("d", GRADIENTS), ("g", FIGURES), ("g", VALUES)]


class Unhurried(Gan):
    """Its generator learns every other step."""

    def phases(self):
        sample, d, g = super().phases()
        return [sample, d, dataclasses.replace(g, every=2)]


class Rare(Unhurried):
    """And is sampled from as rarely, after the discriminator has learnt."""

    def phases(self):
        sample, _, g = super().phases()
        noise = Update("d", loss=self.noise_loss, trains=self.d, optimizer=sgd(0.1))
        return [noise, dataclasses.replace(sample, every=2), g]

    def noise_loss(self, batch, rng):
        noise = rng.rows.normal(*batch["real"].shape)
        return Loss(tf.nn.softplus(-self.d(batch["real"])[:, 0]) + tf.nn.softplus(self.d(noise)[:, 0]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "replicas", "microbatches", "sampled"), [(Rare, 2, 1, ONE), (Unhurried, 4, 2, E), (Rare, 4, 2, E)]
)
def test_a_way_through_need_not_be_due_in_every_step(task, replicas, microbatches, sampled):
    elsewhere = type("Elsewhere", (task,), {"places": (sampled, E, E)})
    assert_same(train(elsewhere, REAL, replicas, microbatches), reference(task))


def test_a_network_of_one_device_is_refused_where_replicas_would_read_it():
    with pytest.raises(ConfigurationError, match="runs on every replica and reads"):
        train(placed(E, E, E, one_device=("g",)), REAL, 2, 1, steps=1)


@pytest.mark.parametrize(
    ("through", "says"), [("nowhere", "is no earlier `Compute`"), ("d", "there is `sample`")], ids=["unknown", "update"]
)
def test_a_wrong_way_through_is_refused(through, says):
    class Wrong(Gan):
        def phases(self):
            sample, d, _ = super().phases()
            return [sample, d, Update("g", loss=self.g_loss, trains=self.g, optimizer=sgd(0.1), through=through)]

    with pytest.raises(ConfigurationError, match=says):
        train(Wrong, REAL, 2, 1, steps=1)


class History(Module):
    """The rows of the step before."""

    def __init__(self):
        super().__init__()
        self.rows = tf.Variable(tf.zeros([ROWS, 8]), trainable=False, name="rows")


class Remembering(Task):
    """Learns to give what the step before saw, shuffled by the step's own numbers."""

    phase_microbatches = None

    def __init__(self, *, rng):
        super().__init__()
        self.net, self.history = Mlp([8, 12, 8], rng=rng.fold("net")), History()

    def phases(self):
        return [
            Compute("jitter", self.jitter, microbatches=self.phase_microbatches),
            Compute("recall", self.recall, state=self.history),
            Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1), microbatches=self.phase_microbatches),
        ]

    def jitter(self, batch, rng):
        return {"jittered": batch["real"] + 0.1 * rng.rows.normal(*batch["real"].shape)}

    def recall(self, batch, rng):
        order = tf.argsort(rng.rows.uniform(ROWS))
        return {"before": tf.gather(self.history.rows, order)}, {self.history.rows.ref(): batch["jittered"]}

    def loss(self, batch, rng):
        noise = rng.rows.normal(*batch["real"].shape)
        return Loss(tf.reduce_mean(tf.square(self.net(batch["real"] + 0.1 * noise) - batch["before"]), 1))


@pytest.mark.parametrize(
    ("replicas", "microbatches", "own"), [(2, 4, 2), pytest.param(4, 1, None, marks=pytest.mark.long)]
)
def test_history_is_kept_in_the_order_of_rows(replicas, microbatches, own):
    task = type("Here", (Remembering,), {"phase_microbatches": own})
    assert_same(train(task, REAL, replicas, microbatches), reference(Remembering))


def test_rows_that_a_phase_only_keeps_are_sent_to_it():
    class Keeping(Remembering):
        def recall(self, batch, rng):
            return {"before": self.history.rows + 0.0}, {self.history.rows.ref(): batch["real"]}

    found, _ = train(Keeping, REAL, 2, 2, steps=1)
    np.testing.assert_array_equal(found.variables["history/rows"], REAL["real"])


def test_a_phase_joins_whole_microbatches_only():
    with pytest.raises(ConfigurationError, match="doesn't divide `Trainer"):
        train(type("Here", (Remembering,), {"phase_microbatches": 4}), REAL, 1, 2, steps=1)
