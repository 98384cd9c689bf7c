"""Reads after a write see the written value, on a mesh as well."""

import os
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from core.layers import Linear, SpectralNorm
from core.losses.adversarial import non_saturating
from core.optimizers import chain, ema, lookahead, sgd
from core.parallel.mesh.program import kept_in_order
from core.task import Loss, Task, Update
from core.testing import Run, assemble, assert_mesh_invariant, on_virtual_mesh
from models.classifiers.mlp import MlpClassifier
from models.gan import Gan, mlp_networks

MOST_JOINED = "DTENSOR_ALLREDUCE_COMBINE_OPTIMIZATION_GROUP_SIZE"


def read_and_write(v, x):
    v.assign(v * x)


def write_and_read(v, x):
    v.assign(x)
    return v * x


def write_by_a_condition_and_read(v, x):
    tf.cond(x > 0, lambda: [v.assign(x), None][1], lambda: None)
    return v * x


def write_within_a_condition_and_read(v, x):
    return tf.cond(x > 0, lambda: write_and_read(v, x), lambda: x)


def read_in_a_loop_and_write(v, x):
    y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * v), (0, x))[1]
    v.assign(y)


def read_in_a_loop_and_write_another_value(v, x):
    y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * v), (0, x))[1]
    v.assign(x)
    return y


def write_twice(v, x):
    v.assign(x)
    v.assign(x * x)


@pytest.mark.parametrize(
    ("fn", "hangs"),
    [
        (read_and_write, False),
        (read_in_a_loop_and_write, False),
        (write_and_read, True),
        (write_by_a_condition_and_read, True),
        (write_within_a_condition_and_read, True),
        (read_in_a_loop_and_write_another_value, True),
        (write_twice, True),
    ],
)
def test_sums_are_not_joined_if_numbers_depend_on_the_order(fn, hangs, monkeypatch):
    monkeypatch.delenv(MOST_JOINED, raising=False)
    v = tf.Variable(1.0)
    traced = tf.function(lambda x: fn(v, x), autograph=False).get_concrete_function(tf.TensorSpec([]))
    with kept_in_order(traced):
        assert os.environ.get(MOST_JOINED) == ("1" if hangs else None)
    assert MOST_JOINED not in os.environ


@pytest.mark.long
def test_a_step_of_one_phase_joins_its_sums():
    make = partial(MlpClassifier, sizes=[64, 8, 8, 10], dropout=0.2, optimizer=chain(sgd(1e-2, momentum=0.9), ema(0.9)))
    run = Run(assemble(make, on_virtual_mesh(2, 1)), images(), microbatches=2)
    run(0)
    assert len(run.collectives) <= 4  # of six variables' gradients, and a few metrics


def images(rows=8):
    random = np.random.RandomState(0)
    return {"image": random.rand(rows, 8, 8, 1).astype("f4"), "label": random.randint(0, 10, rows).astype("i4")}


@pytest.mark.parametrize(
    ("spectral_norm", "settings"),
    [(False, {}), pytest.param(True, {"num_classes": 10, "r1": 0.3}, marks=pytest.mark.long)],
    ids=["plain", "penalised"],
)
def test_a_generator_learns_from_the_discriminator_as_its_update_left_it(spectral_norm, settings):
    networks = partial(mlp_networks, g_hidden=[8], d_hidden=[8], spectral_norm=spectral_norm)
    optimizers = {"g_optimizer": sgd(0.1), "d_optimizer": chain(sgd(0.1), ema(0.9))}
    gan = partial(Gan, networks=networks, image_shape=[8, 8, 1], latent_size=4, **settings, **optimizers)
    layouts = [("g/hidden/0/?", "...,model"), ("g/image/w", "model,-")]
    assert_mesh_invariant(partial(gan, game=non_saturating()), images(), [(2, 1)], layouts=layouts, steps=3)


class Normalised(Task):
    """After its update, derives its normaliser from the written values."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = SpectralNorm(Linear(6, 4, rng=rng), rng=rng)

    def phases(self):
        optimizer = lookahead(sgd(0.1), sync_period=2)
        return [Update("net", loss=self.loss, trains=self.net, optimizer=optimizer)]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.net(batch["x"])), -1))


@pytest.mark.long
def test_values_derived_after_an_update_are_of_what_it_wrote():
    batch = {"x": np.random.RandomState(0).randn(8, 6).astype("f4")}
    assert_mesh_invariant(Normalised, batch, [(2, 1)], layouts=[("net/layer/w", "-,model")], steps=4)
