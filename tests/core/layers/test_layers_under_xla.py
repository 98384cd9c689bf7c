"""Layers with another implementation under XLA: the same values, gradients, and gradients of gradients."""

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


@pytest.mark.long
@pytest.mark.parametrize("name", MADE)
def test_layer_has_the_same_two_derivatives_compiled_or_not(name):
    call, variables = MADE[name]()
    again = () if name == "attention" else variables  # its second derivatives take long to compile

    def derivatives(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = call(x)
                loss = tf.reduce_sum(tf.sin(y))
            first = inner.gradient(loss, [x, *variables])
            penalty = tf.add_n([tf.reduce_sum(tf.square(g)) for g in first])
        return [y, *first, *outer.gradient(penalty, [x, *again])]

    compiled = tf.function(derivatives, jit_compile=True, autograph=False)
    for one, other in zip(compiled(X), derivatives(X), strict=True):
        largest = np.abs(tf.convert_to_tensor(other)).max()
        np.testing.assert_allclose(tf.convert_to_tensor(one), other, rtol=1e-4, atol=1e-5 * max(1.0, largest))


SIZES = [(2, 2, "VALID"), (3, 2, "SAME"), (3, 1, "SAME"), (2, 3, "SAME"), (3, 2, 1)]  # window, stride, padding
SOME_POOLS = [*((1, *sizes) for sizes in SIZES[:3]), (2, *SIZES[1]), (3, *SIZES[0])]


@pytest.mark.long
@pytest.mark.parametrize(
    ("batch", "pools"),
    [(4, SOME_POOLS), (None, [(1, *SIZES[4]), (2, *SIZES[3])])],
    ids=["some", "of unknown rows"],
)
def test_gradient_of_equal_values_in_a_pool_is_the_same_compiled_or_not(batch, pools):
    xs = {axes: tf.round(2.0 * RNG.normal([4, *[7] * axes, 3])) for axes in (1, 2, 3)}  # many are equal

    def pooled(x, axes, window, stride, padding):
        pads = [(padding, padding)] * axes if isinstance(padding, int) else padding
        return MaxPool([window] * axes, stride=[stride] * axes, padding=pads)(x)

    def gradients(*inputs):
        found = []
        for axes, *sizes in pools:
            x = inputs[axes - 1]
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.sin(1.0 + pooled(x, axes, *sizes)))
            found.append(tape.gradient(loss, x))
        return found

    specs = [tf.TensorSpec([batch, *x.shape[1:]]) for x in xs.values()]
    compiled = tf.function(gradients, jit_compile=True, input_signature=specs, autograph=False)
    for pool, one, other in zip(pools, compiled(*xs.values()), gradients(*xs.values()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6, err_msg=str(pool))


def test_gelu_is_that_of_tensorflow():
    x = tf.constant([-100.0, -5.0, -1.0, -0.1, 0.0, 0.5, 3.0, 1e4])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours, theirs = gelu(x), tf.nn.gelu(x, approximate=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(ours, x), tape.gradient(theirs, x), atol=2e-6)  # theirs has no tail


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_masked_key_is_not_seen_even_if_it_is_not_finite(compiled):
    q, k, v = (RNG.fold(name).normal([1, 4, 2, 3]) for name in "qkv")
    last = tf.constant([[True, True, True, False]])
    causal, masked = (
        tf.function(functools.partial(attend, **how), jit_compile=compiled or None, autograph=False)
        for how in ({"causal": True}, {"mask": last})
    )
    for key in (math.nan, math.inf, 1e38):
        spoilt = tf.concat([k[:, :3], tf.fill([1, 1, 2, 3], key)], 1)
        np.testing.assert_array_equal(causal(q, spoilt, v)[:, :3], causal(q, k, v)[:, :3])
        np.testing.assert_array_equal(masked(q, spoilt, v), masked(q, k, v))
