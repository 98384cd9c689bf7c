"""Random draws don't depend on how a batch is split, and have their distributions."""

import math

import numpy as np
import pytest
import tensorflow as tf

from core.random import Rng

RNG = Rng.from_seed(7)


def slices(rows, parts):
    """Returns an `Rng` for each of `parts` equal parts of `rows` rows."""
    size = rows // parts
    return [RNG._replace(first_row=tf.constant(i * size), num_rows=size) for i in range(parts)]


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 3, 16, 37])
def test_rows_are_slices_of_one_draw_bit_for_bit(parts, width):
    for kind in ("bits", "uniform", "normal"):
        whole = getattr(RNG.rows, kind)(16, width).numpy()
        cut = [getattr(rng.rows, kind)(16 // parts, width).numpy() for rng in slices(16, parts)]
        assert np.concatenate(cut).tobytes() == whole.tobytes(), kind


def test_rows_have_any_shape():
    assert RNG.rows.normal(4, 2, 3).shape == [4, 2, 3]
    assert RNG.rows.uniform(4).shape == [4]


@pytest.mark.long
def test_graph_and_xla_draw_the_same():
    def draw(step):
        rng = RNG.fold("noise").fold(step)
        return (
            rng.bits([5]),
            rng.uniform([5], -1.0, 2.0),
            rng.normal([5]),
            rng.truncated_normal([5]),
            rng.rows.normal(3, 5),
        )

    eager = draw(tf.constant(3))
    for compiled in (False, True):
        other = tf.function(draw, jit_compile=compiled or None)(tf.constant(3))
        for a, b in zip(eager, other, strict=True):
            np.testing.assert_allclose(a.numpy().astype("float64"), b.numpy().astype("float64"), atol=1e-6)
        assert other[0].numpy().tobytes() == eager[0].numpy().tobytes()


def test_xla_finds_the_key_of_a_draw_once():
    """Otherwise each number would compute it again: ten more rounds of Philox."""
    draw = tf.function(lambda step: RNG.fold(step).bits([4096]), jit_compile=True)
    program = draw.experimental_get_compiler_ir(tf.constant(3))(stage="optimized_hlo")
    (drawing,) = [part for part in program.split("\n\n") if part.startswith("%fused") and "[1024" in part]
    assert drawing.count(" multiply(") == 20  # two a round


def test_folds_are_unrelated_and_repeatable():
    folded = [RNG.fold(x) for x in (0, 1, 2**31, "a", "b", -1)] + [Rng.from_seed(s) for s in (0, 1, -1, 2**40)]
    draws = {rng.bits([8]).numpy().tobytes() for rng in folded}
    assert len(draws) == len(folded)
    np.testing.assert_array_equal(RNG.fold("a").fold(1).seed, RNG.fold("a").fold(tf.constant(1)).seed)
    assert all(int(tf.reduce_min(rng.seed)) >= 0 for rng in folded)
    draws = np.stack([RNG.fold(i).normal([1000]).numpy() for i in range(8)])
    correlations = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlations).max() < 6 / math.sqrt(1000)


def test_distributions():
    n = 200_000
    uniform, normal = RNG.uniform([n]).numpy(), RNG.normal([n]).numpy()
    truncated = RNG.truncated_normal([n]).numpy()
    assert uniform.min() >= 0.0
    assert uniform.max() < 1.0
    for found, mean, deviation in ((uniform, 0.5, 12**-0.5), (normal, 0.0, 1.0), (truncated, 0.0, 0.8796)):
        assert abs(found.mean() - mean) < 5 * deviation / math.sqrt(n)
        assert abs(found.std() - deviation) < 0.01
    assert np.abs(truncated).max() <= 2.0
    for edge in (-1.0, 0.0, 1.5):  # against the normal distribution function
        expected = 0.5 * (1 + math.erf(edge / math.sqrt(2)))
        assert abs((normal < edge).mean() - expected) < 5 * 0.5 / math.sqrt(n)
