"""A loss that compares rows gathers those of all replicas, in the order of the global batch."""

import dataclasses
import functools

import engine_lab
import numpy as np
import pytest
import tensorflow as tf
from engine_lab import assert_same

from core import layers, losses
from core.distribution import Exchange
from core.distribution.ledger import GRADIENTS, ROWS
from core.engine import accumulate_gradients
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.random import Rng
from core.task import ONE_DEVICE, Loss, Task, Update, all_rows, own_rows
from core.testing import assert_collectives, assert_step_function, on_virtual_cpus

ROWS_OF_BATCH = 32


class Contrast(Task):
    """Finds a row's other view among all rows that count; the rest is padding."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(5, 4, rng=rng.fold("net"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1, momentum=0.9), mixes_rows=True)]

    def loss(self, batch, rng):
        x = batch["x"] + 0.1 * rng.fold("noise").rows.normal(*batch["x"].shape)
        one, other = self.net(batch["x"]), self.net(x)
        count = batch["weight"] > 0.0
        return Loss(self.contrast(one, other, count), weight=batch["weight"])

    def contrast(self, one, other, count):
        return losses.nt_xent(one, other, mask=count)


class Unweighted(Contrast):
    """Every row counts, and the loss is written by hand."""

    def loss(self, batch, rng):
        z = tf.math.l2_normalize(self.net(batch["x"]), axis=-1)
        y = all_rows(batch["y"])
        near = tf.matmul(z, all_rows(z), transpose_b=True) - tf.square(batch["y"][:, None] - y)
        return Loss(tf.reduce_logsumexp(near, axis=-1))


class Paired(Contrast):
    def contrast(self, one, other, count):
        return losses.info_nce(one, other, mask=count)


class AsAWhole(Contrast):
    """Joins the trainer's microbatches to larger ones, whose rows form several runs on the replicas."""

    def phases(self):
        (update,) = super().phases()
        return [dataclasses.replace(update, microbatches=self.microbatches)]

    microbatches = 1

    def loss(self, batch, rng):
        numbers = all_rows(batch["number"])
        after = tf.cast(numbers[:-1] < numbers[1:], tf.float32)
        own = tf.reduce_sum(tf.abs(tf.cast(own_rows(numbers) - batch["number"], tf.float32)))
        error = tf.square(self.net(batch["x"])[:, 0])
        return Loss(error, metrics={"in_order": tf.fill(error.shape, tf.reduce_mean(after) - own)})


def data():
    random = np.random.RandomState(0)
    return {
        "x": random.randn(ROWS_OF_BATCH, 5).astype("float32"),
        "y": random.randn(ROWS_OF_BATCH).astype("float32"),
        "weight": random.choice([0.0, 0.5, 1.0, 3.0], ROWS_OF_BATCH).astype("float32"),
        "number": np.arange(ROWS_OF_BATCH, dtype="uint8"),
    }


def train(task_class, replicas, microbatches, *, steps=5, **settings):
    return engine_lab.train(task_class, data(), replicas, microbatches, steps=steps, **settings)


@functools.cache
def reference(task_class, microbatches):
    return train(task_class, 1, microbatches)


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches"),
    [(Paired, 2, 2), pytest.param(Contrast, 4, 1, marks=pytest.mark.long)],
)
def test_contrast_is_the_same_on_any_number_of_replicas(task, replicas, microbatches):
    found = train(task, replicas, microbatches)
    assert_same(found, reference(task, microbatches))
    assert len(found[1].exchange.ledger.of("net", GRADIENTS)) == 1


@pytest.mark.long
def test_a_compiled_step_and_one_device_see_the_same_rows():
    assert_same(train(Contrast, 2, 1, compile=True), reference(Contrast, 1))
    whole = train(Contrast, 2, 1, placements={"net": ONE_DEVICE})
    assert_same(whole, reference(Contrast, 1))
    assert not whole[1].exchange.ledger.of("net", ROWS)


def test_the_loss_is_that_of_the_definition_in_float64():
    found = train(Unweighted, 2, 1)
    assert_same(found, reference(Unweighted, 1))
    # Each gather is one collective, and one more backward where there is a gradient: `y`, `z` and back.
    sizes = [(entry.dtype, entry.bytes) for entry in found[1].exchange.ledger.of("net", ROWS)]
    assert sizes == [("float32", 4 * ROWS_OF_BATCH * size) for size in (1, 4, 4)]
    net = layers.Linear(5, 4, rng=Rng.from_seed(1).fold("init").fold("net"))
    z = data()["x"].astype("float64") @ net.w.numpy().astype("float64") + net.b.numpy()
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    y = data()["y"].astype("float64")
    near = z @ z.T - np.square(y[:, None] - y)
    expected = np.mean(np.log(np.sum(np.exp(near), axis=1)))
    np.testing.assert_allclose(found[0].figures["net/loss"][0], expected, rtol=1e-6)


def test_rows_come_in_the_order_of_the_batch_where_a_phase_joins_microbatches():
    task = type("Joined", (AsAWhole,), {"microbatches": 2})
    found = train(task, 2, 4, steps=1)[0]
    np.testing.assert_allclose(found.figures["net/in_order"], [1.0])


def test_users_assert_on_it_and_on_replicas():
    batch = {key: tf.constant(x) for key, x in data().items()}
    assert_step_function(Unweighted(rng=Rng.from_seed(0)).loss, batch, mixes_rows=True)
    with pytest.raises(AssertionError, match=r"3 of `rows` in phase `net`.*where 2 are expected.*`all_rows` gathers"):
        assert_collectives(Unweighted, batch, {"net": {"gradients": 1, "rows": 2}})


def on_replicas(replicas, fn, *values):
    """Returns a function of each replica's own rows of `values`, with `all_rows`."""
    strategy = on_virtual_cpus(replicas)
    exchange = Exchange(strategy)

    def part(context):
        place = context.replica_id_in_sync_group
        return {str(i): tf.split(x, replicas)[place][tf.newaxis] for i, x in enumerate(values)}

    def replica(mine):
        net = {"scale": scale}
        loss = lambda batch, rng: Loss(*fn(scale, *(batch[str(i)] for i in range(len(values)))))  # noqa: E731
        return dict(accumulate_gradients(loss, net, mine, Rng.from_seed(0), exchange=exchange)[0].gradients)

    with strategy.scope():
        scale = tf.Variable(1.0)
    run = tf.function(lambda mine: exchange.run(replica, mine), autograph=False)
    found = run(strategy.experimental_distribute_values_from_function(part))
    return [float(x) for x in strategy.experimental_local_results(found["scale"])]


def test_gradients_come_back_from_the_losses_of_all_replicas():
    """With Σ_i x_i Σ_j s y_j, divided by the rows: each replica gets the others' gradients by its rows."""
    x, y = tf.constant([1.0, 2.0, 3.0, 4.0]), tf.constant([5.0, 6.0, 7.0, 8.0])

    def loss(scale, x, y):
        return (x * tf.reduce_sum(all_rows(scale * y)),)

    assert on_replicas(2, loss, x, y) == [10.0 * 11.0 / 4.0, 10.0 * 15.0 / 4.0]


def test_gathers_keep_nonfinite_values_in_their_rows_and_take_other_types():
    x = tf.constant([1.0, float("nan"), 3.0, float("inf")])

    def loss(scale, x, flags, half):
        whole = tf.where(tf.math.is_finite(all_rows(x)), all_rows(x), 0.0)
        total = tf.reduce_sum(tf.where(all_rows(flags), whole, 100.0))
        assert all_rows(flags).dtype == tf.bool
        assert all_rows(half).dtype == tf.bfloat16
        return (scale * tf.fill([2], total) * tf.cast(tf.reduce_sum(all_rows(half)), tf.float32),)

    flags, half = tf.constant([True, True, False, True]), tf.constant([1.0, 2.0, 3.0, 4.0], tf.bfloat16)
    assert on_replicas(2, loss, x, flags, half) == [1010.0 / 2.0] * 2


def test_custom_loop_declares_what_its_replicas_share():
    strategy = on_virtual_cpus(2)
    with strategy.scope():
        net = layers.Linear(1, 1, rng=Rng.from_seed(0))

    def replica():
        loss = lambda batch, rng: Loss(net(batch["x"])[:, 0])  # noqa: E731
        return accumulate_gradients(loss, net.parameters(), {"x": tf.ones([1, 2, 1])}, Rng.from_seed(0))[0].sums

    with pytest.raises(ValueError, match="on 2 replicas without an `exchange`"):
        tf.function(lambda: strategy.run(replica), autograph=False)()


def test_custom_loop_gathers_in_one_microbatch_only():
    strategy = on_virtual_cpus(2)
    with strategy.scope():
        net = layers.Linear(1, 1, rng=Rng.from_seed(0))
    exchange = Exchange(strategy)

    def replica():
        loss = lambda batch, rng: Loss(all_rows(net(batch["x"]))[:2, 0])  # noqa: E731
        values = {"x": tf.ones([3, 2, 1])}
        accumulate_gradients(loss, net.parameters(), values, Rng.from_seed(0), exchange=exchange)

    with pytest.raises(ValueError, match="mixes the rows of 2 replicas in 3 microbatches"):
        tf.function(lambda: strategy.run(replica), autograph=False)()


class Silent(Contrast):
    """Doesn't declare that it mixes rows."""

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]


class Alone(Contrast):
    """Declares it, and compares the rows of one replica."""

    def loss(self, batch, rng):
        error = self.net(batch["x"])[:, 0]
        return Loss(tf.square(error - tf.reduce_mean(error)))


class Twice(Contrast):
    """Gathers two views as so many rows."""

    def loss(self, batch, rng):
        z = self.net(batch["x"])
        return Loss(tf.reduce_sum(tf.matmul(z, all_rows(tf.concat([z, z], 0)), transpose_b=True), 1))


@pytest.mark.parametrize("replicas", [1, 2])
def test_gathering_must_be_declared(replicas):
    with pytest.raises(ConfigurationError, match=r"phase `net` gathers the rows.*`mixes_rows=True`"):
        train(Silent, replicas, 1)


def test_mixing_within_each_replica_alone_is_refused():
    train(Alone, 1, 1, steps=1)
    train(Alone, 2, 1, steps=1, placements={"net": ONE_DEVICE})
    with pytest.raises(ConfigurationError, match=r"phase `net`.*its own 8 of 16 alone.*`all_rows\(x\)`"):
        train(Alone, 2, 2)


def test_a_gather_of_other_rows_than_the_batch_has_is_refused():
    with pytest.raises(ValueError, match=r"`all_rows` of shape \(32, 4\), but sees 16 rows.*tf.stack"):
        train(Twice, 2, 1)
