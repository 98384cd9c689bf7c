"""Phases that share networks, statistics or weights follow the specification, or raise an error that names them."""

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import DATA, Several, assert_as_plain, train, update

from core import layers
from core.errors import ConfigurationError
from core.module import Module
from core.task import Compute, Loss, Statistics

# --- A network with statistics, which another phase trains -----------------------------------------------------------


class Normalised(Module):
    def __init__(self, *, rng, norm=None, sync=True):
        super().__init__()
        self.first = layers.Linear(3, 4, rng=rng.fold("first"))
        self.norm = norm or layers.BatchNorm(4, sync=sync, decay=0.8)
        self.last = layers.Linear(4, 1, rng=rng.fold("last"))

    def __call__(self, x, statistics=None):
        return self.last(tf.tanh(self.norm(self.first(x), statistics=statistics)))[:, 0]


class Reading(Several):
    """`g` learns from `d`'s output, over `g`'s own batches."""

    sync = True

    def __init__(self, *, rng):
        super().__init__()
        self.d = Normalised(rng=rng.fold("d"), sync=self.sync)
        self.g = layers.Linear(3, 3, rng=rng.fold("g"))

    def phases(self):
        return [
            update("d", self.d_loss, self.d, mixes_rows=True),
            update("g", self.g_loss, self.g, mixes_rows=True),
        ]

    def d_loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.square(self.d(batch["x"], statistics) - batch["y"]), statistics=statistics)

    def g_loss(self, batch, rng):
        statistics = Statistics()  # of rows that `d` isn't trained by: even if returned, they change nothing
        return Loss(tf.square(self.d(0.5 + self.g(batch["x"]), statistics)), statistics=statistics)


class ReadingFirst(Reading):
    def phases(self):
        return super().phases()[::-1]


class Halves(Reading):
    """Different phases train the parts of one network, and both return the middle's statistics."""

    def phases(self):
        body = [self.d.first, self.d.norm]
        return [
            update("body", self.d_loss, body, mixes_rows=True),
            update("head", self.d_loss, self.d.last, mixes_rows=True),
        ]


class Lazily(Reading):
    """A second loss trains the same network every other step, and moves its averages too."""

    def phases(self):
        return [
            update("d", self.d_loss, self.d, mixes_rows=True),
            update("again", self.d_loss, self.d, mixes_rows=True, every=2),
        ]


class SharedNorm(Reading):
    """Networks of two phases share a normalisation without trainable variables."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        norm = layers.BatchNorm(4, sync=True, decay=0.8, scale=False, offset=False)
        self.d = Normalised(rng=rng.fold("d"), norm=norm)
        self.e = Normalised(rng=rng.fold("e"), norm=norm)

    def phases(self):
        return [
            update("d", self.d_loss, self.d, mixes_rows=True),
            update("e", self.e_loss, self.e, mixes_rows=True),
        ]

    def e_loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.square(self.e(2.0 * batch["x"], statistics) - batch["y"]), statistics=statistics)


LONG = [(ReadingFirst, 1, 1), (Halves, 2, 2), (SharedNorm, 2, 1)]


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches"),
    [
        (Reading, 2, 1),
        (Lazily, 1, 2),
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_networks_with_statistics_that_several_phases_read_are_as_specified(task, replicas, microbatches):
    variables = assert_as_plain(task, DATA, replicas, microbatches)
    assert np.any(variables["d/norm/moving_mean"])


class ByAverages(Reading):
    """`d` learns with averages that only `g`'s loss would move, which may not."""

    def d_loss(self, batch, rng):
        return Loss(tf.square(self.d(batch["x"]) - batch["y"]))


class Forgotten(Reading):
    def d_loss(self, batch, rng):
        return super().d_loss(batch, rng)._replace(statistics=None)


class HeadOnly(Reading):
    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.first, self.norm = self.d.first, self.d.norm

    def phases(self):
        return [update("head", self.d_loss, self.d.last, mixes_rows=True)]


class InACompute(Reading):
    def phases(self):
        return [
            Compute("judge", self.judge, mixes_rows=True),
            update("d", lambda batch, rng: Loss(tf.square(batch["z"])), self.d, mixes_rows=True, through="judge"),
        ]

    def judge(self, batch, rng):
        return {"z": self.d(batch["x"], Statistics())}


@pytest.mark.parametrize("task", [ByAverages, Forgotten, HeadOnly, InACompute])
def test_averages_that_nothing_would_move_are_refused(task):
    with pytest.raises(ConfigurationError, match=r"no update moves `d/norm/moving_mean`.*return it"):
        train(task, DATA, 1, 1)


class Taught(Several):
    """`d` learns from an untrained teacher, normalised by its own batch, as the error advises."""

    def __init__(self, *, rng):
        super().__init__()
        self.d = layers.Linear(3, 1, rng=rng.fold("d"))
        self.teacher = Normalised(rng=rng.fold("teacher"), sync=False)

    def phases(self):
        return [Compute("teach", self.teach, state=self.teacher), update("d", self.loss, self.d)]

    def teach(self, batch, rng):
        statistics = Statistics()
        outputs = {"z": self.teacher(batch["x"], statistics)}
        followed = 0.9 * self.teacher.last.w + 0.1
        return outputs, {self.teacher.last.w.ref(): followed, **statistics.averages()}

    def loss(self, batch, rng):
        return Loss(tf.square(self.d(batch["x"])[:, 0] - batch["z"]))


class TaughtByFixedAverages(Taught):
    def teach(self, batch, rng):
        outputs, history = super().teach(batch, rng)
        return outputs, {self.teacher.last.w.ref(): history[self.teacher.last.w.ref()]}


@pytest.mark.long
def test_a_history_moves_the_averages_that_it_returns():
    variables = assert_as_plain(Taught, DATA, 2, 2)
    assert np.any(variables["teacher/norm/moving_mean"])
    with pytest.raises(ConfigurationError, match=r"no update moves `teacher/norm/moving_mean`.*`Compute\(..., state"):
        train(TaughtByFixedAverages, DATA, 2, 2)


class Apart(Reading):
    """Its normalisation sees the rows of one replica."""

    sync = False

    def phases(self):
        return [update("d", self.d_loss, self.d)]


def test_a_normalisation_that_doesnt_synchronise_is_refused_on_several_replicas():
    train(Apart, DATA, 1, 2, steps=1)
    with pytest.raises(ConfigurationError, match=r"2 replicas.*`d/norm/moving_mean`.*`sync=True`"):
        train(Apart, DATA, 2, 1)


# --- Weights that are tied across phases -----------------------------------------------------------------------------


class Tied(Several):
    """`b` has the kernel of `a`."""

    def __init__(self, *, rng):
        super().__init__()
        self.a = layers.Linear(3, 3, rng=rng.fold("a"))
        self.b = layers.Linear(3, 3, bias=False, rng=rng.fold("b"))
        self.d = layers.Linear(3, 1, rng=rng.fold("d"))
        self.b.w = self.a.w
        self.both = Module()
        self.both.a, self.both.b = self.a, self.b

    def phases(self):
        return [update("a", self.a_loss, self.a), update("b", self.b_loss, self.b)]

    def a_loss(self, batch, rng):
        return Loss(tf.square(self.a(batch["x"])[:, 0] - batch["y"]))

    def b_loss(self, batch, rng):
        return Loss(tf.square(self.b(batch["x"])[:, 1] - batch["y"]))

    def sum_of_losses(self, batch, rng):
        return Loss(self.a_loss(batch, rng).per_example + self.b_loss(batch, rng).per_example)

    def d_loss(self, batch, rng):
        return Loss(tf.square(self.d(tf.tanh(self.b(batch["x"])))[:, 0] - batch["y"]))


class TiedAndRead(Tied):
    """One phase trains the shared kernel, the other reads it in its own network."""

    def phases(self):
        return [update("a", self.a_loss, self.a), update("d", self.d_loss, self.d)]


class TiedInOneModule(Tied):
    def phases(self):
        return [update("both", self.sum_of_losses, self.both), update("d", self.d_loss, self.d, every=2)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "replicas", "microbatches"),
    [(TiedAndRead, 1, 2), (TiedInOneModule, 2, 1)],
)
def test_tied_weights_are_as_specified(task, replicas, microbatches):
    assert_as_plain(task, DATA, replicas, microbatches)


def test_tied_weights_that_two_phases_train_are_refused():
    with pytest.raises(ConfigurationError, match=r"phases `a` and `b` both train `w`.*add the losses up"):
        train(Tied, DATA, 1, 1)


def test_tied_weights_that_one_phase_trains_twice_are_refused():
    class Twice(Tied):
        def phases(self):
            return [update("both", self.sum_of_losses, [self.a, self.b])]

    with pytest.raises(ValueError, match=r"holds one variable twice, as `0/w` and `1/w`.*one module that holds them"):
        train(Twice, DATA, 1, 1)


def test_weights_tied_to_what_a_pass_was_made_of_are_refused():
    class Through(Tied):
        def phases(self):
            return [Compute("make", lambda b, _: {"z": self.a(b["x"])}), update("a", self.loss, self.a, through="make")]

        def loss(self, batch, rng):
            return Loss(tf.square(self.b(batch["z"])[:, 0] - batch["y"]))

    with pytest.raises(ConfigurationError, match="reads `a/w`, which it trains, but its gradients go through `make`"):
        train(Through, DATA, 1, 1)
