"""The vision transformer and ConvNeXt: the papers' sizes, learning, and refusals."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import digits
from core.optimizers import adamw
from core.random import Rng, undrawn
from core.testing import assert_overfits, assert_step_function, assert_updates_only
from models import ConvNeXt, ConvNeXtClassifier, ViT, ViTClassifier

RNG = Rng.from_seed(0)
BATCH = digits("train").gather(tf.range(6, dtype=tf.int64))
VIT = {"image_shape": [8, 8, 1], "patch": 4, "size": 16, "num_layers": 2, "num_heads": 2}
CONVNEXT = {"image_shape": [8, 8, 1], "patch": 2, "channels": [8, 16], "blocks": [1, 2]}


def vit(**settings):
    return ViTClassifier(**{**VIT, **settings}, rng=RNG, optimizer=adamw(0.01))


def convnext(**settings):
    return ConvNeXtClassifier(**{**CONVNEXT, **settings}, rng=RNG, optimizer=adamw(0.01))


def count(net):
    return sum(v.shape.num_elements() for v in net.parameters().values())


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        pytest.param((192, 12, 3), 5_717_416, marks=pytest.mark.long),
        ((384, 12, 6), 22_050_664),
        ((768, 12, 12), 86_567_656),
        pytest.param((1024, 24, 16), 304_326_632, marks=pytest.mark.long),
    ],
)
def test_sizes_of_vits_are_those_of_the_papers(sizes, parameters):
    size, num_layers, num_heads = sizes
    with undrawn(), tf.Graph().as_default():
        rng = Rng.from_seed(0)
        net = ViT([224, 224, 3], num_classes=1000, size=size, num_layers=num_layers, num_heads=num_heads, rng=rng)
    assert count(net) == parameters


@pytest.mark.parametrize(
    ("blocks", "parameters"),
    [([3, 3, 9, 3], 28_589_128), pytest.param([3, 3, 27, 3], 50_223_688, marks=pytest.mark.long)],
)
def test_sizes_of_convnexts_are_those_of_the_paper(blocks, parameters):
    with undrawn(), tf.Graph().as_default():
        assert count(ConvNeXt(num_classes=1000, blocks=blocks, rng=Rng.from_seed(0))) == parameters


@pytest.mark.long
@pytest.mark.parametrize("make", [vit, convnext])
def test_step_trains_the_network_and_overfits(make):
    task = make(drop_path=0.2)
    assert_step_function(task.loss, BATCH)
    assert_updates_only(task, "net", task.net, BATCH)
    assert_overfits(make(), BATCH, steps=60, to=0.3)


def test_registers_and_pooling_change_what_is_read():
    plain, mean = vit(), vit(pool="mean", registers=3)
    assert mean.net.token is None
    assert tuple(mean.net.positions.shape) == (4, 16)
    assert tuple(plain.net.positions.shape) == (5, 16)
    before = mean.evaluate(BATCH).per_example
    mean.net.registers.assign(RNG.normal([3, 16]))
    assert np.abs(mean.evaluate(BATCH).per_example - before).min() > 1e-6  # attention reads them
    assert_step_function(mean.loss, BATCH)


@pytest.mark.parametrize(
    ("make", "settings", "says"),
    [
        (vit, {"patch": 3}, "`patch` is 3, which doesn't divide images of 8x8 pixels"),
        (vit, {"pool": "max"}, "`pool` is 'max'; give one of 'token', 'mean'"),
        (vit, {"registers": -1}, "`registers` is -1; give a number of tokens, 0 or more"),
        (convnext, {"blocks": [1]}, r"`channels` is \[8, 16\] and `blocks` is \[1\]; give both one number"),
    ],
)
def test_other_settings_are_refused(make, settings, says):
    with pytest.raises(ValueError, match=says):
        make(**settings)
