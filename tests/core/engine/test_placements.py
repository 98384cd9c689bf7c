"""Phases on one device give the same numbers as phases on every replica."""

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


@functools.cache
def reference(task=Gan):
    return train(task, REAL, 1, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("places", "microbatches", "copies", "one_device", "sent"),
    [
        # The generator's gradients aren't sent; the discriminator's gradients by the fakes are.
        ((ONE, E, E), 2, 1, ("g",), [("d", VALUES), ("d", GRADIENTS), ("g", FIGURES), ("g", VALUES)]),
        ((ENOUGH, FEWER, FEWER), 1, 2, (), None),
        # The generator stays on every replica: the inputs of its update are gathered, and gradients go to all.
        ((E, E, ONE), 1, 2, (), [("d", GRADIENTS), *[("g", VALUES)] * 3, ("g", GRADIENTS)]),
    ],
    ids=["generator on one device", "by batch size", "generator's update alone on one device"],
)
def test_placement_changes_no_number_and_costs_no_pass(places, microbatches, copies, one_device, sent):
    """The forward pass under a gradient is traced once per copy, and once more when the step is planned."""
    task = placed(*places, passes=[], one_device=one_device)
    found = train(task, REAL, 2, microbatches)
    assert_same(found, reference())
    assert len(task.passes) == 1 + copies
    assert sent in (None, [(entry.phase, entry.what) for entry in found[1].exchange.ledger.collectives])


def test_a_network_of_one_device_is_refused_where_replicas_would_read_it():
    with pytest.raises(ConfigurationError, match="runs on every replica and reads"):
        train(placed(E, E, E, one_device=("g",)), REAL, 2, 1, steps=1)


@pytest.mark.parametrize(
    ("through", "says"),
    [("nowhere", "isn't an earlier `Compute`"), ("d", "there is `sample`")],
    ids=["unknown", "update"],
)
def test_a_wrong_way_through_is_refused(through, says):
    class Wrong(Gan):
        def phases(self):
            sample, d, _ = super().phases()
            return [sample, d, Update("g", loss=self.g_loss, trains=self.g, optimizer=sgd(0.1), through=through)]

    with pytest.raises(ConfigurationError, match=says):
        train(Wrong, REAL, 2, 1, steps=1)


class History(Module):
    """Holds the rows of the previous step."""

    def __init__(self):
        super().__init__()
        self.rows = tf.Variable(tf.zeros([ROWS, 8]), trainable=False, name="rows")


class Remembering(Task):
    """Learns to return the previous step's rows, shuffled by the step's random numbers."""

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


@pytest.mark.long
def test_history_is_kept_in_the_order_of_rows():
    task = type("Here", (Remembering,), {"phase_microbatches": 2})
    assert_same(train(task, REAL, 2, 4), reference(Remembering))


@pytest.mark.long
def test_rows_that_a_phase_only_keeps_are_sent_to_it():
    class Keeping(Remembering):
        def recall(self, batch, rng):
            return {"before": self.history.rows + 0.0}, {self.history.rows.ref(): batch["real"]}

    found, _ = train(Keeping, REAL, 2, 2, steps=1)
    np.testing.assert_array_equal(found.variables["history/rows"], REAL["real"])


def test_a_phase_joins_whole_microbatches_only():
    with pytest.raises(ConfigurationError, match="doesn't divide `Trainer"):
        train(type("Here", (Remembering,), {"phase_microbatches": 4}), REAL, 1, 2, steps=1)
