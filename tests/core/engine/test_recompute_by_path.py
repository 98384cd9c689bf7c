"""Modules that recompute by their paths train to the same numbers, wherever and however they train."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import assert_same

from core.errors import ConfigurationError
from core.layers import BatchNorm, Dropout, LayerNorm, Linear, Residual, Sequential
from core.layers.recompute_by_path import recompute_by_path
from core.module import Module, named_variables
from core.optimizers import sgd
from core.random import Rng
from core.task import ONE_DEVICE, Compute, Loss, Statistics, Task, Update
from core.testing import Run, assemble, on_virtual_cpus, on_virtual_mesh

ROWS, STEPS = 16, 2
DATA = {"x": np.random.RandomState(0).randn(ROWS, 4).astype("float32")}
BLOCKS = ["blocks/*"]


class Blocks(Module):
    """Residual blocks with dropout, and normalization by `norm`."""

    def __init__(self, norm, count=2, *, rng):
        super().__init__()
        self.blocks = [self._block(norm, rng.fold(i)) for i in range(count)]

    def __call__(self, x, rng=None, *, statistics=None):
        for i, block in enumerate(self.blocks):
            x = block(x, None if rng is None else rng.fold(i), statistics=statistics)
        return x

    def _block(self, norm, rng):
        up, down = Linear(4, 8, rng=rng.fold("up")), Linear(8, 4, rng=rng.fold("down"))
        return Residual(Sequential([norm(4), up, tf.nn.tanh, Dropout(0.3), down]))


class Networks(Task):
    """A generator that learns through its samples, a penalty of second order, and batch statistics."""

    def __init__(self, *, rng, place=None, norm=None):
        super().__init__()
        self.g, self.d = (Blocks(LayerNorm, 1, rng=rng.fold(name)) for name in "gd")
        mixing = functools.partial(BatchNorm, sync=True)
        self.net = Blocks(norm, 1, rng=rng.fold("net")) if norm else Blocks(mixing, rng=rng.fold("net"))
        self.place = {} if place is None else {"placement": place}

    def phases(self):
        mixes = {"mixes_rows": True} if isinstance(self.net.blocks[0].layer.layers[0], BatchNorm) else {}
        return [
            Compute("sample", self.sample, **self.place),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.005)),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=sgd(0.005), through="sample"),
            Update("net", loss=self.net_loss, trains=self.net, optimizer=sgd(0.005, momentum=0.9), **mixes),
        ]

    def sample(self, batch, rng):
        return {"fake": self.g(rng.rows.normal(batch["x"].shape[0], 4), rng.fold("dropout"))}

    def d_loss(self, batch, rng):
        with tf.GradientTape() as tape:
            tape.watch(batch["x"])
            real = tf.reduce_sum(self.d(batch["x"], rng), 1)
        penalty = tf.reduce_sum(tf.square(tape.gradient(real, batch["x"])), 1)
        return Loss(tf.nn.softplus(-real) + tf.nn.softplus(tf.reduce_sum(self.d(batch["fake"]), 1)) + penalty)

    def g_loss(self, batch, rng):
        return Loss(tf.nn.softplus(-tf.reduce_sum(self.d(batch["fake"]), 1)))

    def net_loss(self, batch, rng):
        statistics = Statistics()
        y = self.net(batch["x"], rng, statistics=statistics)
        return Loss(tf.reduce_sum(tf.square(y - 1.0), 1), statistics=statistics)


def trained(replicas, patterns, *, microbatches=1, strategy=None, one_device=(), make=Networks, **settings):
    """Returns the results of some steps with modules that recompute by `patterns`, and the step."""

    def factory(*, rng):
        task = make(rng=rng)
        recompute_by_path(task, patterns)
        return task

    assembly = assemble(factory, strategy or on_virtual_cpus(replicas), one_device=one_device)
    run = Run(assembly, DATA, microbatches=microbatches, **settings)
    return run.train(STEPS), run.step


@functools.cache
def stored(microbatches, make=Networks):
    return trained(1, [], microbatches=microbatches, make=make)


@pytest.mark.long
def test_same_numbers_on_replicas_and_microbatches():
    patterns = {"net/blocks/*": "every_other", "[gd]/blocks/0": "whole"}
    assert_same(trained(2, patterns, microbatches=2), stored(2))


def normed_by_rows(*, rng, **settings):
    return Networks(rng=rng, norm=LayerNorm, **settings)


@pytest.mark.long
def test_same_numbers_compiled():
    found = trained(1, ["g", "d", "net"], make=normed_by_rows, compile=True)
    assert found[1].compiled
    assert_same(found, stored(1, normed_by_rows))


@pytest.mark.long
def test_same_numbers_of_a_network_on_one_device():
    make = functools.partial(normed_by_rows, place=ONE_DEVICE)
    assert_same(trained(2, BLOCKS, one_device=["g"], make=make), stored(1, normed_by_rows))


@pytest.mark.long
def test_same_numbers_on_a_mesh():
    mesh = on_virtual_mesh(2, 2, [("*/layers/1/w", "-,model"), ("*/layers/4/w", "model,-")])
    assert_same(trained(4, BLOCKS, strategy=mesh, make=normed_by_rows), stored(1, normed_by_rows))


def tanhs(patterns, *, training):
    """Counts the activations that a traced call of the blocks computes."""
    net = Blocks(LayerNorm, rng=Rng.from_seed(0))
    recompute_by_path(net, patterns)

    @tf.function(autograph=False)
    def call(x):
        if not training:
            return net(x)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(net(x))
        return tape.gradient(y, net.trainable_variables)

    graph = call.get_concrete_function(tf.TensorSpec([2, 4])).graph
    return sum(op.type == "Tanh" for op in graph.get_operations()), {op.type for op in graph.get_operations()}


@pytest.mark.parametrize(("patterns", "count"), [([], 2), (BLOCKS, 4), ({"blocks/*": "every_other"}, 3)])
def test_activations_are_computed_twice_for_a_gradient_and_once_without(patterns, count):
    assert tanhs(patterns, training=True)[0] == count
    assert tanhs(patterns, training=False) == tanhs([], training=False)


def test_paths_and_classes_stay():
    net, plain = (Blocks(LayerNorm, rng=Rng.from_seed(0)) for _ in range(2))
    assert recompute_by_path(net, BLOCKS) == ["blocks/0", "blocks/1"]
    assert list(named_variables(net)) == list(named_variables(plain))
    assert [repr(block) for block in net.blocks] == [repr(block) for block in plain.blocks]
    assert all(isinstance(block, Residual) for block in net.blocks)
    cls = type(net.blocks[0])
    recompute_by_path(net, BLOCKS)  # again
    assert type(net.blocks[0]) is cls


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["net/block/*"], r"has the pattern 'net/block/\*', which matches no module .* Did you mean `net/blocks/"),
        (
            ["net/blocks/0/layer/layers/1/w"],
            ".*which matches `net/blocks/0/layer/layers/1/w`: only a module",
        ),
        (["net/blocks/*", "net/blocks/1/layer"], "matches `net/blocks/1` and `net/blocks/1/layer` within it"),
        ({"net/blocks/*": "half"}, r"of 'net/blocks/\*' is 'half'; give 'whole' or 'every_other'"),
        ("net/blocks/*", r"is 'net/blocks/\*'; give a list"),
        ([3], "has the pattern 3; a pattern is a text"),
    ],
)
def test_unusable_patterns_are_refused(patterns, says):
    with pytest.raises(ConfigurationError, match=f"`Experiment.recompute` {says}"):
        recompute_by_path(Networks(rng=Rng.from_seed(0)), patterns, argument="Experiment.recompute")
