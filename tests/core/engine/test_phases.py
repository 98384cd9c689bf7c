"""Phases that conflict raise an error before the first step, with a remedy."""

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import REAL, Gan, assert_same, plainly, train

from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import adam, sgd
from core.task import EVERY_REPLICA, ONE_DEVICE, Compute, Loss, Update
from core.task.statistics import Statistics, Sums


class Pair(Gan):
    """A generator and a discriminator; SGD keeps gradients of rounding size small."""

    g_optimizer = sgd(0.1)

    def penalty(self, batch, rng):
        return Loss(tf.square(self.d(batch["real"])[:, 0]))


def with_update(**settings):
    class More(Pair):
        def phases(self):
            return [*super().phases(), Update("more", loss=self.penalty, optimizer=adam(0.01), **settings_of(self))]

    def settings_of(task):
        return {key: x(task) if callable(x) else x for key, x in settings.items()}

    return More


@pytest.mark.parametrize(
    "task",
    [with_update(trains=lambda task: task.d), with_update(trains=lambda task: task, every=2)],
    ids=["the same network", "all of it and more"],
)
def test_updates_that_train_the_same_are_refused(task):
    with pytest.raises(ConfigurationError, match=r"phases `.*` and `more` both train `"):
        train(task, REAL, 1, 1)


def test_a_gradient_that_would_not_go_through_is_refused():
    class Decayed(Pair):
        def g_loss(self, batch, rng):
            decay = tf.add_n([tf.reduce_sum(tf.square(v)) for v in self.g.trainable_variables])
            return Loss(super().g_loss(batch, rng).per_example + decay)

    with pytest.raises(ConfigurationError, match=r"reads `.*`, which it trains, but its gradients go through `sample`"):
        train(Decayed, REAL, 1, 1)


@pytest.mark.long
def test_advice_of_the_error_trains_right():
    class Direct(Pair):
        frozen = ("d",)

        def phases(self):
            return [Update("g", loss=self.both, trains=self.g, optimizer=sgd(0.1))]

        def decay(self):
            return tf.add_n([tf.reduce_sum(tf.square(v)) for v in self.g.trainable_variables])

        def both(self, batch, rng):
            fake = self.g(tf.tanh(batch["real"][:, :4]))
            return Loss(tf.nn.softplus(-self.d(fake)[:, 0]) + self.decay())

    class Advised(Direct):
        def phases(self):
            through = Update("g", loss=self.rest, trains=self.g, optimizer=sgd(0.1), through="sample")
            return [Compute("sample", self.sample), through]

        def sample(self, batch, rng):
            real = batch["real"]
            return {"fake": self.g(tf.tanh(real[:, :4])), "decay": tf.fill([real.shape[0]], self.decay())}

        def rest(self, batch, rng):
            return Loss(tf.nn.softplus(-self.d(batch["fake"])[:, 0]) + batch["decay"])

    found, expected = train(Advised, REAL, 2, 1, steps=3)[0].variables, plainly(Direct, REAL, steps=3, init=1)[0]
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-5, err_msg=path)


def test_a_pass_is_gone_through_with_the_weights_that_made_it():
    class Twice(Pair):
        def phases(self):
            sample, d, g = super().phases()
            lazy = Update("lazy", loss=self.g_loss, trains=self.g, optimizer=sgd(0.1), every=2, through="sample")
            return [sample, d, g, lazy]

    with pytest.raises(ConfigurationError, match="phase `g` has updated a network of it in between"):
        train(Twice, REAL, 1, 1)


class Weightless(Pair):
    """Its generator learns through its pass from rows of weight zero."""

    def phases(self):
        sample, d, _ = super().phases()
        return [sample, d, Update("g", loss=self.g_loss, trains=self.g, optimizer=adam(0.1), through="sample")]

    def g_loss(self, batch, rng):
        return super().g_loss(batch, rng)._replace(weight=tf.zeros([batch["fake"].shape[0]]))


@pytest.mark.long
def test_a_way_through_from_rows_without_weight_is_a_skipped_update():
    found, _ = train(Weightless, REAL, 2, 1, steps=2)
    assert found.variables["optimizer/g/step"] == 0
    assert found.variables["optimizer/d/step"] == 2


class Mixing(Pair):
    """Its generator subtracts the mean over the rows of all replicas."""

    placement = EVERY_REPLICA

    def phases(self):
        _, d, g = super().phases()
        return [Compute("sample", self.sample, mixes_rows=True, placement=self.placement), d, g]

    def sample(self, batch, rng):
        fake = super().sample(batch, rng)["fake"]
        rows = tf.cast(fake.shape[0], tf.float32)
        sums = Statistics().sum_over_replicas(Sums(rows, tf.reduce_sum(fake, 0), tf.reduce_sum(tf.square(fake), 0)))
        return {"fake": fake - sums.total / sums.count}


@pytest.mark.parametrize(
    ("placement", "microbatches"), [(EVERY_REPLICA, 1), pytest.param(ONE_DEVICE, 2, marks=pytest.mark.long)]
)
def test_a_way_through_what_mixes_rows_is_right(placement, microbatches):
    placed = type("Placed", (Mixing,), {"placement": placement})
    assert_same(train(placed, REAL, 2, microbatches), train(Mixing, REAL, 1, microbatches))


def test_a_way_through_what_mixes_the_rows_of_several_microbatches_is_refused():
    with pytest.raises(ConfigurationError, match="goes through `sample` and rows are mixed"):
        train(Mixing, REAL, 2, 2)


class Remembering(Pair):
    """It keeps a mean of its inputs."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.history = Module()
        self.history.mean = tf.Variable(tf.zeros([]), trainable=False, name="mean")

    def phases(self):
        return [Compute("recall", self.recall, state=self.state()), *super().phases()]

    def state(self):
        return self.history

    def recall(self, batch, rng):
        return {"seen": batch["real"]}, {self.history.mean.ref(): tf.reduce_mean(batch["real"])}


def test_history_is_a_phases_own():
    class Foreign(Remembering):
        def recall(self, batch, rng):
            outputs, _ = super().recall(batch, rng)
            bias = next(v for v in self.d.trainable_variables if v.shape.rank == 1)
            return outputs, {bias.ref(): tf.zeros_like(bias)}

    class Trained(Remembering):
        def state(self):
            return self.d

    assert train(Remembering, REAL, 1, 1)[0].variables["history/mean"] == pytest.approx(np.mean(REAL["real"]), abs=1e-6)
    with pytest.raises(ConfigurationError, match="isn't part of its `state`"):
        train(Foreign, REAL, 1, 1)
    with pytest.raises(ConfigurationError, match=r"`state` of phase `recall` holds `.*`, which phase `d` trains"):
        train(Trained, REAL, 1, 1)


def test_a_network_that_shares_a_part_cannot_move_to_one_device_alone():
    class Shared(Pair):
        one_device = ("g",)

        def __init__(self, *, rng):
            super().__init__(rng=rng)
            self.last = self.g.layers[-1]

    with pytest.raises(ConfigurationError, match=r"names `g`, but its variable `.*` belongs to another"):
        train(Shared, REAL, 2, 1)


def test_a_phase_cannot_train_a_network_of_one_device_together_with_another():
    class Joint(Pair):
        one_device = ("g",)

        def phases(self):
            return [Update("both", loss=self.penalty, trains=[self.g, self.d], optimizer=sgd(0.1))]

    with pytest.raises(ConfigurationError, match=r"^phase `both` trains `0/.*`, which .* on one device .* two phases"):
        train(Joint, REAL, 2, 1)
