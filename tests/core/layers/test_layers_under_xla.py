"""Layers that compute otherwise where XLA compiles them give the same: values, gradients, gradients of gradients."""

import numpy as np
import pytest
import tensorflow as tf

from core.layers import LayerNorm, MultiHeadAttention, RMSNorm, gelu
from core.random import Rng

RNG = Rng.from_seed(3)
X = 2.0 * RNG.normal([2, 6, 8]) + 5.0


def attention():
    layer = MultiHeadAttention(8, 4, num_kv_heads=2, causal=True, rotary_base=10000.0, rng=RNG)
    layer.key.b.assign(RNG.normal([4]))
    mask = tf.constant([[True] * 6, [True] * 3 + [False] * 3])
    return lambda x: layer(x, mask=mask), layer.trainable_variables


def norm(kind, **settings):
    layer = kind(8, **settings)
    layer.scale.assign(RNG.normal([8]))
    return layer, layer.trainable_variables


MADE = {
    "attention": attention,
    "LayerNorm": lambda: norm(LayerNorm),
    "LayerNorm without offset": lambda: norm(LayerNorm, offset=False),
    "RMSNorm": lambda: norm(RMSNorm),
    "gelu": lambda: (gelu, ()),
}


@pytest.mark.parametrize("name", MADE)
def test_compiled_or_not_two_derivatives_are_the_same(name):
    call, variables = MADE[name]()

    def derivatives(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = call(x)
                loss = tf.reduce_sum(tf.sin(y))
            first = inner.gradient(loss, [x, *variables])
            penalty = tf.add_n([tf.reduce_sum(tf.square(g)) for g in first])
        return [y, *first, *outer.gradient(penalty, [x, *variables])]

    plain, compiled = (tf.function(derivatives, jit_compile=jit)(X) for jit in (None, True))
    for one, other in zip(compiled, plain, strict=True):
        largest = np.abs(tf.convert_to_tensor(other)).max()
        np.testing.assert_allclose(tf.convert_to_tensor(one), other, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def test_gelu_is_that_of_tensorflow():
    x = tf.constant([-100.0, -5.0, -1.0, -0.1, 0.0, 0.5, 3.0, 1e4])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours, theirs = gelu(x), tf.nn.gelu(x, approximate=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(ours, x), tape.gradient(theirs, x), atol=2e-6)  # theirs has no tail
