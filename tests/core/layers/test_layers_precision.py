"""Half precision: sums over many rows or pixels are float32's, and finite if their result is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core.layers import (
    GRU,
    LSTM,
    AveragePool,
    BatchNorm,
    Bilinear,
    Conv1D,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    DepthwiseConv2D,
    GroupNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    SeparableConv2D,
    attend,
    global_average_pool,
    unroll,
)
from core.random import Rng

RNG = Rng.from_seed(14)
HALVES = {tf.bfloat16: 2**-8, tf.float16: 2**-11}  # relative size of one rounding


def steps_of(core: Any) -> Any:
    """Returns `core` over time, as a layer."""
    return lambda x: unroll(core, x)[0]


# Each has 4096 rows, or pixels, or times, that a parameter's gradient adds up.
LAYERS: dict[str, tuple[Any, list[int]]] = {
    "Linear": (Linear(8, 4, rng=RNG), [4096, 8]),
    "Linear over time": (Linear(8, 4, rng=RNG), [16, 256, 8]),
    "Bilinear": (Bilinear(3, 3, 2, rng=RNG), [4096, 3]),
    "Conv1D": (Conv1D(4, 3, 3, rng=RNG), [8, 512, 4]),
    "Conv2D": (Conv2D(4, 3, 3, rng=RNG), [4, 32, 32, 4]),
    "Conv2D in groups": (Conv2D(4, 4, 3, rng=RNG, groups=2), [4, 32, 32, 4]),
    "Conv3D": (Conv3D(2, 3, 3, rng=RNG), [1, 16, 16, 16, 2]),
    "ConvTranspose2D": (ConvTranspose2D(4, 3, 3, rng=RNG), [4, 32, 32, 4]),
    "DepthwiseConv2D": (DepthwiseConv2D(4, 3, rng=RNG), [4, 32, 32, 4]),
    "DepthwiseConv2D dilated": (DepthwiseConv2D(4, 3, rng=RNG, dilation=2), [4, 32, 32, 4]),
    "SeparableConv2D": (SeparableConv2D(4, 3, 3, rng=RNG), [4, 32, 32, 4]),
    "LayerNorm": (LayerNorm(4), [4096, 4]),
    "RMSNorm": (RMSNorm(4), [4096, 4]),
    "GroupNorm": (GroupNorm(4, 2), [4, 32, 32, 4]),
    "BatchNorm": (BatchNorm(4), [4096, 4]),
    "LearnedPositions": (LearnedPositions(1, 4, rng=RNG), [4096, 1, 4]),
    "MultiHeadAttention": (MultiHeadAttention(4, 2, rng=RNG, bias=False), [64, 64, 4]),
    "LSTM": (LSTM(3, 4, rng=RNG), [256, 16, 3]),
    "GRU": (GRU(3, 4, rng=RNG), [256, 16, 3]),
}


def gradients(layer: Any, x: tf.Tensor, dtype: tf.DType) -> list[tf.Tensor]:
    """Returns the parameters' gradients for output gradients of one sign, as a mean has them."""
    x = tf.cast(x, dtype)
    call = steps_of(layer) if isinstance(layer, GRU | LSTM) else layer
    inputs = (x, x) if isinstance(layer, Bilinear) else (x,)
    with tf.GradientTape() as tape:
        y = call(*inputs)
    upstream = tf.cast(0.01 + 0.01 * RNG.fold("upstream").uniform(y.shape), dtype)
    return tape.gradient(y, layer.trainable_variables, upstream)


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_that_add_up_many_rows_are_those_of_float32(name: str, dtype: tf.DType) -> None:
    layer, shape = LAYERS[name]
    x = RNG.fold("x").uniform(shape)
    exact, found = gradients(layer, x, tf.float32), gradients(layer, x, dtype)
    for variable, a, b in zip(layer.trainable_variables, exact, found, strict=True):
        a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
        assert b.dtype == tf.float32
        # A handful of roundings on the way, each of every summand alike: nothing that grows with their number.
        error = np.abs(b - a).max() / np.abs(a).max()
        assert error < 8 * HALVES[dtype], variable.name


def test_the_bias_of_a_mean_has_its_share_of_the_gradient_whatever_the_number_of_rows() -> None:
    layer = Linear(8, 4, rng=RNG)
    for rows in (256, 1024, 16384):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(layer(tf.ones([rows, 8], tf.bfloat16)), tf.float32))
        np.testing.assert_allclose(tape.gradient(loss, layer.b), [0.25] * 4, rtol=1e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("window", [4, 7, 16, 64])
@pytest.mark.parametrize("padding", ["VALID", 1])
def test_the_mean_of_a_window_does_not_depend_on_how_large_it_is(dtype: tf.DType, window: int, padding: Any) -> None:
    x = tf.cast(RNG.normal([1, 64, 64, 2]) + 3.0, dtype)
    layer = AveragePool(window, padding=padding)
    exact = layer(tf.cast(x, tf.float64))
    found = layer(x)
    assert found.dtype == dtype
    np.testing.assert_allclose(tf.cast(found, tf.float64), exact, rtol=HALVES[dtype])


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("pool", [global_average_pool, AveragePool(64)])
def test_the_mean_of_equal_values_is_their_value(dtype: tf.DType, pool: Callable[..., tf.Tensor]) -> None:
    x = tf.fill([1, 64, 64, 2], tf.constant(100.0, dtype))  # whose sum float16 can't hold
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = pool(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(tf.cast(tf.reshape(y, [-1]), tf.float32), [100.0, 100.0])
    np.testing.assert_allclose(tf.cast(tape.gradient(y, x), tf.float32), np.full(x.shape, 2.0**-12), rtol=1e-3)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_scores_beyond_float16_are_finite(chunk_size: int | None) -> None:
    q = tf.fill([1, 4, 1, 64], tf.constant(100.0, tf.float16))  # of 100 * 100 * 64 / 8
    k = q * tf.constant([1.0, 0.9, 0.5, -1.0], tf.float16)[:, tf.newaxis, tf.newaxis]
    for keys in (q, k):
        with tf.GradientTape() as tape:
            tape.watch([q, keys])
            y = attend(q, keys, q / 100.0, causal=True, chunk_size=chunk_size)
        np.testing.assert_allclose(y, np.ones(y.shape))
        for gradient in tape.gradient(y, [q, keys]):
            assert np.isfinite(gradient).all()
    # The largest of scores beyond float16 is still told from the next.
    values = tf.reshape(tf.range(4.0), [1, 4, 1, 1])
    np.testing.assert_array_equal(attend(q, k, tf.cast(values, tf.float16))[..., 0], np.zeros([1, 4, 1]))
