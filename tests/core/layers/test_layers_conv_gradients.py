"""Gradients of convolutions on CPUs, of both orders, equal those of TensorFlow's own convolution."""

import numpy as np
import pytest
import tensorflow as tf

from core.layers import Conv2D, conv
from core.layers.conv import pays
from core.random import Rng

RNG = Rng.from_seed(3)
PADDINGS = {"SAME": "SAME", "VALID": "VALID", "by hand": [(1, 2), (0, 3)]}


def derivatives(convolve, x, w):
    """Returns a function's derivatives by `x` and `w`, and those of the gradients' size by both."""
    with tf.GradientTape() as outer:
        outer.watch([x, w])
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.reduce_sum(tf.sin(convolve(x, w)))
        first = tape.gradient(y, [x, w])
        size = tf.add_n([tf.reduce_sum(tf.square(dx)) for dx in first])
    return [*first, *outer.gradient(size, [x, w])]


@pytest.fixture(autouse=True)
def eigen(monkeypatch):
    """Computes as where TensorFlow doesn't use oneDNN."""
    monkeypatch.setattr("core.layers.conv.uses_onednn", lambda: False)


CASES = [  # padding, outputs, window, size: each pair of two of them at least once
    ("SAME", 2, (4, 3), (15, 13)),
    ("SAME", 3, (1, 1), (3, 60)),
    ("SAME", 7, (4, 3), (3, 60)),
    ("VALID", 2, (1, 1), (3, 60)),
    ("VALID", 3, (4, 3), (15, 13)),
    ("VALID", 7, (1, 1), (15, 13)),
    ("by hand", 2, (4, 3), (15, 13)),
    ("by hand", 3, (1, 1), (15, 13)),
    ("by hand", 7, (4, 3), (15, 13)),
]


@pytest.mark.long
@pytest.mark.parametrize(("padding", "outputs", "window", "size"), CASES)
def test_convolution_gradients_are_those_of_tensorflow(padding, outputs, window, size):
    padding = PADDINGS[padding]
    layer = Conv2D(3, outputs, window, rng=RNG.fold("layer"), padding=padding, bias=False)
    x, w = tf.cast(RNG.fold("x").normal([2, *size, 3]), tf.float64), tf.cast(layer.w, tf.float64)
    pads = padding if isinstance(padding, str) else [(0, 0), *padding, (0, 0)]

    @tf.function(input_signature=[tf.TensorSpec(x.shape, tf.float64), tf.TensorSpec(w.shape, tf.float64)])
    def ours(x, w):
        return derivatives(layer.compute, x, w)

    expected = derivatives(lambda x, w: tf.nn.conv2d(x, w, 1, pads), x, w)
    for found, peer in zip(ours(x, w), expected, strict=True):
        np.testing.assert_allclose(found, peer, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("outputs", [2, 7])
def test_incoming_gradient_may_be_slices_or_of_a_size_known_late(outputs):
    layer = Conv2D(3, outputs, 3, rng=RNG.fold("layer"))
    x, order = RNG.fold("x").normal([2, 12, 12, 3]), tf.constant([1, 1, 0])

    def gathered(y, first):
        return tf.gather(y, order)

    def cut(y, first):
        return tf.slice(y, [0, first, 0, 0], [-1, 4, -1, -1])

    for change in (gathered, cut):

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def ours(first, change=change):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(tf.sin(change(layer(x), first)))
            found = tape.gradient(y, [x, layer.w])
            assert [dx.shape for dx in found] == [x.shape, layer.w.shape]
            return found

        with tf.GradientTape() as tape:
            tape.watch(x)
            peer = tf.nn.conv2d(x, tf.convert_to_tensor(layer.w), 1, "SAME") + layer.b
            y = tf.reduce_sum(tf.sin(change(peer, tf.constant(2))))
        for found, expected in zip(ours(tf.constant(2)), tape.gradient(y, [x, layer.w]), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_custom_gradients_are_used_by_size(monkeypatch):
    x, w = tf.zeros([2, 12, 12, 3]), tf.zeros([3, 3, 3, 4])
    assert pays(x, w)
    assert not pays(x[:, :11], w)  # too few outputs
    assert not pays(x[:0], w)  # no rows, of which TensorFlow makes zeros
    assert not pays(x, w[:1, :1])  # a matrix product
    assert not pays(tf.cast(x, tf.bfloat16), w)
    monkeypatch.setattr("core.layers.conv.only_cpus", lambda: False)
    assert not pays(x, w)
    monkeypatch.undo()
    monkeypatch.setattr("core.layers.conv.uses_onednn", lambda: True)
    assert not pays(x, w)


def test_layer_on_a_mesh_keeps_tensorflows_gradients(monkeypatch):
    layer = Conv2D(2, 3, 3, rng=Rng.from_seed(0))
    turned = []
    monkeypatch.setattr(conv, "pays", lambda x, w: True)
    monkeypatch.setattr(conv, "convolve_image", lambda x, w: turned.append(w) or tf.nn.conv2d(x, w, 1, "VALID"))
    expected = layer(tf.ones([1, 12, 12, 2]))
    assert len(turned) == 1
    layer.w.on_mesh = True  # as a mesh marks its variables
    np.testing.assert_allclose(layer(tf.ones([1, 12, 12, 2])), expected, rtol=1e-6)
    assert len(turned) == 1
