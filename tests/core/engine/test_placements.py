"""Phases that run on one device, and values and gradients that move between them and the replicas: the same numbers."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import assert_same, train

from core.distribution.ledger import FIGURES, GRADIENTS, VALUES
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import adam, sgd
from core.task import EVERY_REPLICA, ONE_DEVICE, Compute, Loss, Task, Update, when_batch_at_least
from models.classifiers.mlp import Mlp
from tests.pairs import in_turn

ROWS = 16
REAL = {"real": np.random.RandomState(3).randn(ROWS, 8).astype("float32")}


class Gan(Task):
    """A sample that both phases read; the generator learns through it."""

    places = (EVERY_REPLICA, EVERY_REPLICA, EVERY_REPLICA)

    def __init__(self, *, rng):
        super().__init__()
        self.g, self.d = Mlp([4, 12, 8], rng=rng.fold("g")), Mlp([8, 12, 1], rng=rng.fold("d"))
        self.passes = 0

    def phases(self):
        sample, d, g = self.places
        return [
            Compute("sample", self.sample, placement=sample),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.1), placement=d),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=adam(0.01), placement=g, through="sample"),
        ]

    def sample(self, batch, rng):
        self.passes += 1
        return {"fake": self.g(rng.rows.normal(batch["real"].shape[0], 4))}

    def d_loss(self, batch, rng):
        real, fake = self.d(batch["real"])[:, 0], self.d(batch["fake"])[:, 0]
        return Loss(tf.nn.softplus(-real) + tf.nn.softplus(fake), metrics={"won": tf.cast(real > fake, tf.float32)})

    def g_loss(self, batch, rng):
        weight = tf.cast(batch["real"][:, 0] > -0.5, tf.float32)
        return Loss(tf.nn.softplus(-self.d(batch["fake"])[:, 0]), weight=weight)


def placed(*places, **attributes):
    return type("PlacedGan", (Gan,), {"places": places, **attributes})


E, ONE = EVERY_REPLICA, ONE_DEVICE
PLACES = {
    "generator on one device": (ONE, E, E),
    "generator and its loss on one device": (ONE, E, ONE),
    "sampling on every replica": (E, ONE, ONE),
    "all on one device": (ONE, ONE, ONE),
    "discriminator on one device": (E, ONE, E),
    "by batch size, below": (when_batch_at_least(ROWS + 1),) * 3,
    "by batch size, reached": (when_batch_at_least(ROWS),) * 3,
}


@functools.cache
def reference(task=Gan):
    return train(task, REAL, 1, 1)


@pytest.mark.parametrize(("places", "replicas", "microbatches"), in_turn(list(PLACES), [(2, 1), (2, 2), (4, 2)]))
def test_every_placement_gives_the_same_numbers(places, replicas, microbatches):
    assert_same(train(placed(*PLACES[places]), REAL, replicas, microbatches), reference())


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_generator_on_one_device_costs_the_others_nothing(microbatches):
    found = train(placed(ONE, E, E, one_device=("g",)), REAL, 2, microbatches)
    assert_same(found, reference())
    # Its gradients go nowhere: what is sent is what the discriminator says of the fakes.
    kinds = [(entry.phase, entry.what) for entry in found[1].exchange.ledger.collectives]
    assert kinds == [("d", VALUES), ("d", GRADIENTS), ("g", FIGURES), ("g", VALUES)]


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(("places", "copies"), [((ONE, E, E), 1), ((E, E, E), 2)])
def test_the_forward_pass_that_a_gradient_goes_back_through_is_made_once(places, copies, microbatches):
    made = []

    class Counted(placed(*places)):
        def __init__(self, *, rng):
            super().__init__(rng=rng)
            made.append(self)

    train(Counted, REAL, 2, microbatches, steps=1)
    assert made[0].passes == 1 + copies  # when the step was planned, and when it was traced, once for each replica


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


QUICK = in_turn([Unhurried, Rare], [(2, 2, ONE), (4, 1, E)])
SLOW = [(task, *numbers) for task in (Unhurried, Rare) for numbers in ((2, 2, E), (4, 1, ONE))]


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches", "sampled"),
    [*QUICK, *(pytest.param(*numbers, marks=pytest.mark.long) for numbers in SLOW)],
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
    ("replicas", "microbatches", "own"), [(2, 2, None), (4, 1, None), (2, 4, 2), (1, 4, 1), (2, 4, 1)]
)
def test_history_is_kept_in_the_order_of_rows(replicas, microbatches, own):
    task = type("Here", (Remembering,), {"phase_microbatches": own})
    assert_same(train(task, REAL, replicas, microbatches), train(Remembering, REAL, 1, 1))


def test_what_a_phase_only_keeps_is_sent_to_it():
    class Keeping(Remembering):
        def recall(self, batch, rng):
            return {"before": self.history.rows + 0.0}, {self.history.rows.ref(): batch["real"]}

    found, _ = train(Keeping, REAL, 2, 2, steps=1)
    np.testing.assert_array_equal(found.variables["history/rows"], REAL["real"])


def test_a_phase_joins_whole_microbatches_only():
    with pytest.raises(ConfigurationError, match="doesn't divide `Trainer"):
        train(type("Here", (Remembering,), {"phase_microbatches": 4}), REAL, 1, 2, steps=1)
