"""The U-Net: the paper's number of parameters, and its equations in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf

from core.module import named_variables
from core.random import Rng, undrawn
from models.diffusion.unet import UNet, unet


def test_defaults_have_the_parameters_of_the_paper_on_cifar_10():
    """The paper says 35.7 million; its code has this number, and ports of it count the same."""
    with tf.Graph().as_default(), undrawn():
        net = unet(image_shape=[32, 32, 3], num_classes=None, rng=Rng.from_seed(0))
        assert sum(math.prod(v.shape) for v in net.parameters().values()) == 35_746_307


def silu(x):
    return x / (1.0 + np.exp(-x))


def linear(x, w):
    return x @ w["w"] + w["b"]


def conv(x, w, stride=1):
    """Pads as TensorFlow does: at the end alone for stride 2."""
    size = w["w"].shape[0]
    before = (size - 1) // 2 if stride == 1 else 0
    x = np.pad(x, [(0, 0), *2 * [(before, size - 1 - before)], (0, 0)])
    out = [(n - size) // stride + 1 for n in x.shape[1:3]]
    y = np.zeros([x.shape[0], *out, w["w"].shape[-1]]) + w["b"]
    for i in range(size):
        for j in range(size):
            y += x[:, i : i + stride * out[0] : stride, j : j + stride * out[1] : stride] @ w["w"][i, j]
    return y


def norm(x, w, groups):
    parts = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    parts = (parts - parts.mean((1, 3), keepdims=True)) / np.sqrt(parts.var((1, 3), keepdims=True) + 1e-6)
    return parts.reshape(x.shape) * w["scale"] + w["offset"]


def block(x, embedded, w, groups):
    h = conv(silu(norm(x, w["norm_1"], groups)), w["conv_1"]) + linear(silu(embedded), w["time"])[:, None, None]
    h = conv(silu(norm(h, w["norm_2"], groups)), w["conv_2"]) + (conv(x, w["shortcut"]) if "shortcut" in w else x)
    if "attention" not in w:
        return h
    w, pixels = w["attention"], norm(h, w["attention"]["norm"], groups).reshape(len(h), -1, h.shape[-1])
    q, k, v = (linear(pixels, w["attention"][name]) for name in ("query", "key", "value"))
    scores = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(h.shape[-1]))
    read = scores / scores.sum(-1, keepdims=True) @ v
    return h + linear(read, w["attention"]["out"]).reshape(h.shape)


def by_hand(x, time, label, w, groups):
    """Computes the U-Net of two sizes, a block each, from nested dictionaries of its weights."""
    angles = 1000.0 * time[:, None] / 10_000.0 ** (np.arange(4) / 4)
    waves = np.hstack([np.sin(angles), np.cos(angles)])
    embedded = linear(silu(linear(waves, w["time_1"])), w["time_2"]) + w["label"]["w"][label]
    first = conv(x, w["first"])
    wide = block(first, embedded, w["down"]["0"]["blocks"]["0"], groups)
    half = conv(wide, w["down"]["0"]["resize"], stride=2)
    narrow = block(half, embedded, w["down"]["1"]["blocks"]["0"], groups)
    x = narrow
    for i in "01":
        x = block(x, embedded, w["middle"][i], groups)
    for i, skip in zip("01", (narrow, half), strict=True):
        x = block(np.concatenate([x, skip], -1), embedded, w["up"]["0"]["blocks"][i], groups)
    x = conv(x.repeat(2, 1).repeat(2, 2), w["up"]["0"]["resize"]["layers"]["1"])
    for i, skip in zip("01", (wide, first), strict=True):
        x = block(np.concatenate([x, skip], -1), embedded, w["up"]["1"]["blocks"][i], groups)
    return conv(silu(norm(x, w["norm"], groups)), w["last"])


def test_network_computes_its_equations():
    random = np.random.RandomState(0)
    net = UNet(
        [8, 4, 2],
        channels=8,
        multipliers=[1, 2],
        blocks=1,
        attention_at=[4],
        groups=4,
        num_classes=3,
        rng=Rng.from_seed(0),
    )
    weights = {}
    for path, variable in named_variables(net).items():
        value = random.normal(size=variable.shape) / math.sqrt(math.prod(variable.shape[:-1]) or 1)
        variable.assign(value)
        *folders, name = path.split("/")
        inner = weights
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = variable.numpy().astype(np.float64)
    x, time, label = random.normal(size=[3, 8, 4, 2]), np.array([0.0, 0.37, -0.8]), np.array([0, 3, 1])
    found = net(tf.constant(x, tf.float32), tf.constant(time, tf.float32), tf.constant(label))
    np.testing.assert_allclose(found, by_hand(x, time, label, weights, 4), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image_shape": [6, 8, 1]}, "in multiples of 4"),
        ({"attention_at": [16]}, r"`attention_at` has 16, but images are \[8, 4, 2\]"),
        ({"groups": 3}, "give a divisor"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, says):
    sizes = {"image_shape": [8, 8, 1], "channels": 8, "multipliers": [1, 1, 1], "attention_at": [4], "groups": 4}
    with pytest.raises(ValueError, match=says):
        unet(num_classes=None, rng=Rng.from_seed(0), **{**sizes, **changes})
