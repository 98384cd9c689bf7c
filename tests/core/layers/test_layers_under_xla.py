"""Layers that compute otherwise where XLA compiles them give the same: values, gradients, gradients of gradients."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from core.layers import LayerNorm, MaxPool, MultiHeadAttention, RMSNorm, attend, gelu
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
    "MaxPool": lambda: (MaxPool(3, stride=2, padding=[1]), ()),
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


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    ("window", "stride", "padding"), [(2, 2, "VALID"), (3, 2, "SAME"), (3, 1, "SAME"), (2, 3, "SAME"), (3, 2, 1)]
)
def test_of_equal_values_in_a_pool_the_same_one_has_the_gradient(window, stride, padding, axes, batch):
    pads = [(padding, padding)] * axes if isinstance(padding, int) else padding
    pool = MaxPool([window] * axes, stride=[stride] * axes, padding=pads)
    x = tf.round(2.0 * RNG.normal([4, *[7] * axes, 3]))  # of which many are equal

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(1.0 + pool(x)))
        return tape.gradient(loss, x)

    signature = [tf.TensorSpec([batch, *x.shape[1:]])]
    plain, compiled = (tf.function(gradient, jit_compile=jit, input_signature=signature)(x) for jit in (None, True))
    np.testing.assert_allclose(compiled, plain, rtol=1e-6, atol=1e-6)


def test_gelu_is_that_of_tensorflow():
    x = tf.constant([-100.0, -5.0, -1.0, -0.1, 0.0, 0.5, 3.0, 1e4])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours, theirs = gelu(x), tf.nn.gelu(x, approximate=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(ours, x), tape.gradient(theirs, x), atol=2e-6)  # theirs has no tail


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("key", [math.nan, math.inf, 1e38])
def test_a_masked_key_is_not_seen_even_where_it_is_no_number(key, compiled):
    q, k, v = (RNG.fold(name).normal([1, 4, 2, 3]) for name in "qkv")
    spoilt, last = tf.concat([k[:, :3], tf.fill([1, 1, 2, 3], key)], 1), tf.constant([[True, True, True, False]])
    causal, masked = (
        tf.function(functools.partial(attend, **how), jit_compile=compiled or None, autograph=False)
        for how in ({"causal": True}, {"mask": last})
    )
    np.testing.assert_array_equal(causal(q, spoilt, v)[:, :3], causal(q, k, v)[:, :3])
    np.testing.assert_array_equal(masked(q, spoilt, v), masked(q, k, v))
