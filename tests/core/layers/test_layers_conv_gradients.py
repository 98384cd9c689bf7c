"""Gradients of convolutions on CPUs, of both orders, are those of TensorFlow's own convolution."""

import numpy as np
import pytest
import tensorflow as tf

from core.layers import Conv2D
from core.layers.conv_gradients import pays
from core.random import Rng

RNG = Rng.from_seed(3)
PADDINGS = {
    "SAME": "SAME",
    "VALID": "VALID",
    "by hand": [(1, 2), (0, 3)],
}


def derivatives(convolve, x, w):
    """Of a number made of the convolution: by `x` and `w`, and of the size of those again."""
    with tf.GradientTape() as outer:
        outer.watch([x, w])
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.reduce_sum(tf.sin(convolve(x, w)))
        first = tape.gradient(y, [x, w])
        size = tf.add_n([tf.reduce_sum(tf.square(dx)) for dx in first])
    return [*first, *outer.gradient(size, [x, w])]


@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("outputs", [2, 3, 7])
@pytest.mark.parametrize("rows", [2, None])
def test_they_are_those_of_tensorflow(padding, outputs, rows):
    layer = Conv2D(3, outputs, (4, 3), rng=RNG.fold("layer"), padding=padding, bias=False)
    x, w = tf.cast(RNG.fold("x").normal([2, 15, 13, 3]), tf.float64), tf.cast(layer.w, tf.float64)
    pads = padding if isinstance(padding, str) else [(0, 0), *padding, (0, 0)]

    @tf.function(input_signature=[tf.TensorSpec([rows, 15, 13, 3], tf.float64), tf.TensorSpec(w.shape, tf.float64)])
    def ours(x, w):
        return derivatives(layer.compute, x, w)

    expected = derivatives(lambda x, w: tf.nn.conv2d(x, w, 1, pads), x, w)
    for found, peer in zip(ours(x, w), expected, strict=True):
        np.testing.assert_allclose(found, peer, rtol=1e-10, atol=1e-10)


def test_where_they_are_used(monkeypatch):
    monkeypatch.setattr("core.layers.conv_gradients._pywrap_util_port.IsMklEnabled", lambda: False)
    x, w = tf.zeros([2, 12, 12, 3]), tf.zeros([3, 3, 3, 4])
    assert pays(x, w, "SAME")
    assert pays(x, w, "VALID")
    assert not pays(x[:, :8], w, "SAME")  # too few outputs
    assert not pays(tf.cast(x, tf.bfloat16), w, "SAME")
    monkeypatch.setattr("core.layers.conv_gradients._pywrap_util_port.IsMklEnabled", lambda: True)
    assert not pays(x, w, "SAME")
