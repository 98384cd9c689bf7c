"""Stochastic rounding to bfloat16 and to 8-bit codes, compared with NumPy and with the exact mean."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers.rounding import SIGNED, UNSIGNED, from_codes, noise_for, scales_shape, to_bfloat16, to_codes
from core.random import Rng

DRAWS = 500
LARGEST = float(tf.bfloat16.max)
DTYPES = pytest.mark.parametrize("dtype", [SIGNED, UNSIGNED], ids=lambda dtype: dtype.name)


def magnitudes(bits):
    """Returns the sizes of all codes by definition, counted up by steps that grow eightfold with e."""
    sizes, step = [0.0], 7.0
    for e in range(bits):
        for _ in range(2**e):
            sizes.append(sizes[-1] + step)
        step *= 4.0  # 8 times the range in twice as many steps
    return np.array(sizes) / sizes[-1]


def in_numpy(x, noise, bits):
    """Quantises one block after the other, by searching the table of codes."""
    table, codes, scales = magnitudes(bits), [], []
    for begin in range(0, x.size, 256):
        block, own = (np.ravel(a)[begin : begin + 256].astype(np.float64) for a in (x, noise))
        scales.append(np.abs(block).max())
        sizes = np.abs(block) / scales[-1]
        lower = np.minimum(np.searchsorted(table, sizes, side="right") - 1, table.size - 2)
        share = (sizes - table[lower]) / (table[lower + 1] - table[lower])
        rounded = lower + (share + (own + 0.5) / 2**16 >= 1.0)
        if bits == 8:
            rounded = np.maximum(rounded, block > 0.0)
        codes.append(np.sign(block).astype(int) * rounded)
    return np.concatenate(codes).reshape(x.shape), np.array(scales, np.float32)


def values(shape, dtype, seed=0):
    """Returns normal numbers of very different sizes."""
    random = np.random.default_rng(seed)
    x = (random.normal(size=shape) * 10.0 ** random.uniform(-7, 2, size=shape)).astype(np.float32)
    return np.abs(x) if dtype == UNSIGNED else x


def rounded(x, rng, dtype):
    return from_codes(*to_codes(x, noise_for(rng, x.shape), dtype)).numpy()


@DTYPES
@pytest.mark.parametrize("shape", [(1,), (), (255,), (16, 16), (3, 7, 41)])
def test_codes_are_those_of_numpy(shape, dtype):
    x = values(shape, dtype)
    noise = noise_for(Rng.from_seed(5), x.shape)
    codes, scales = to_codes(tf.constant(x), noise, dtype)
    expected, expected_scales = in_numpy(x, noise.numpy(), 7 if dtype == SIGNED else 8)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(scales, expected_scales)
    assert codes.dtype == dtype
    assert scales.shape == scales_shape(x.shape)


@DTYPES
def test_all_codes_are_kept_exactly(dtype):
    every = np.arange(-127 if dtype == SIGNED else 0, 128 if dtype == SIGNED else 256)
    every = np.concatenate([every, np.full(256 - every.size, every[-1])])
    for scale in (1e-30, 3.7e-12, 1.0, 1e4, 1e30):
        x = from_codes(tf.constant(every, dtype), tf.constant([scale]))
        np.testing.assert_allclose(np.abs(x).max(), scale, rtol=1e-7)
        for seed in range(10):
            codes, _ = to_codes(x, noise_for(Rng.from_seed(seed), x.shape), dtype)
            np.testing.assert_array_equal(codes, every)


@pytest.mark.long
@DTYPES
def test_codes_are_right_on_average_and_within_one_step(dtype):
    x = tf.constant(np.abs(values([256], SIGNED)) if dtype == UNSIGNED else values([256], SIGNED))
    call = tf.function(lambda i: from_codes(*to_codes(x, noise_for(Rng.from_seed(0).fold(i), x.shape), dtype)))
    draws = np.stack([call(tf.constant(i)) for i in range(DRAWS)]) / np.abs(x).max()
    exact, table = x.numpy() / np.abs(x).max(), magnitudes(7 if dtype == SIGNED else 8)
    step = np.diff(table)[np.minimum(np.searchsorted(table, np.abs(exact), side="right") - 1, table.size - 2)]
    assert (np.abs(draws - exact) <= 1.001 * step + 1e-9).all()
    coded = np.abs(exact) >= table[1]  # smaller ones of uint8 are rounded up
    assert (np.abs(draws.mean(0) - exact)[coded] < 0.5 * step[coded] * 5.0 / DRAWS**0.5).all()


def test_smallest_values_of_squares_are_not_zero():
    x = np.full([256], 1e-30, np.float32)
    x[:2] = 1e4, 0.0
    codes, _ = to_codes(tf.constant(x), noise_for(Rng.from_seed(0), x.shape), UNSIGNED)
    assert codes[0] == 255
    assert codes[1] == 0
    assert (codes[2:] == 1).numpy().all()


@DTYPES
def test_zeros_and_values_next_to_zero_are_kept_or_become_zero(dtype):
    for size in (0.0, 1e-40, 1e-45):
        found = rounded(tf.fill([300], tf.constant(size)), Rng.from_seed(0), dtype)
        assert (np.abs(found) <= 1.001 * size).all()


@pytest.mark.long
@DTYPES
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("compiled", [False, True])
def test_value_that_is_not_finite_stays_visible_in_its_block_alone(bad, compiled, dtype):
    x = np.ones([3, 256], np.float32)
    x[1, 7] = bad
    call = tf.function(lambda x: rounded_tensor(x, dtype), jit_compile=compiled, autograph=False)
    found = call(tf.constant(x)).numpy()
    assert not np.isfinite(found[1, 7])
    assert (found[::2] == 1.0).all()


def rounded_tensor(x, dtype):
    return from_codes(*to_codes(x, noise_for(Rng.from_seed(0), x.shape), dtype))


def test_bfloat16_is_right_on_average():
    x = tf.constant(values([500], SIGNED))
    call = tf.function(lambda i: to_bfloat16(x, noise_for(Rng.from_seed(0).fold(i), x.shape)))
    draws = np.stack([call(tf.constant(i)).numpy() for i in range(DRAWS)]).astype(np.float64)
    ulp = 2.0 ** (np.floor(np.log2(np.abs(x))) - 7)
    assert (np.abs(draws - x) < ulp).all()
    assert (np.abs(draws.mean(0) - x) < 0.5 * ulp * 5.0 / DRAWS**0.5).all()


def test_bfloat16_keeps_its_own_values_and_those_beyond_its_range():
    own = np.array(
        [0.0, -0.0, 1.0, -1.0078125, 1e4, LARGEST, -LARGEST, np.inf, -np.inf, np.nan], tf.bfloat16.as_numpy_dtype
    )
    wide = own.astype(np.float32)
    just_above = np.full(1000, np.nextafter(np.float32(LARGEST), np.float32(np.inf)))
    largest = np.full(1000, np.finfo(np.float32).max)
    for seed in range(10):
        found = to_bfloat16(tf.constant(wide), noise_for(Rng.from_seed(seed), wide.shape)).numpy()
        assert found.tobytes() == own.tobytes()
        for x in (just_above, largest, -largest):
            found = to_bfloat16(tf.constant(x), noise_for(Rng.from_seed(seed), x.shape)).numpy()
            assert (np.abs(found.astype(np.float32)) == LARGEST).all()


def test_xla_rounds_to_the_same_bits():
    x = tf.constant(values([37, 29], SIGNED))

    def both(x):
        noise = noise_for(Rng.from_seed(3).fold(4), x.shape)
        return to_bfloat16(x, noise), *to_codes(x, noise, SIGNED), *to_codes(tf.abs(x), noise, UNSIGNED)

    for plain, compiled in zip(both(x), tf.function(both, autograph=False, jit_compile=True)(x), strict=True):
        assert plain.numpy().tobytes() == compiled.numpy().tobytes()
