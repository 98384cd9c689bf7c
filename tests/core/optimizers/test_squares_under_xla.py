"""Half the sum of squares, which XLA gets in another form than kernels: the same number, whatever is in it."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers.norms import half_of_squares
from core.tracing import in_xla

COMPILED = tf.function(half_of_squares, jit_compile=True, autograph=False)
SHAPES = [(), (1,), (10,), (2047,), (5000,), (784, 128), (3, 3, 64, 128), (5000, 1), (1, 5000), (0,), (0, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_half_of_squares_is_numpys_with_xla_and_without(shape):
    x = np.float32(np.random.RandomState(0).normal(0.0, 30.0, shape))
    for call in (tf.function(half_of_squares, autograph=False), COMPILED):
        found = call(tf.constant(x))
        np.testing.assert_allclose(found, 0.5 * np.sum(np.square(x, dtype="float64")), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_non_finite_value_shows_at_every_place(bad):
    for place in (0, 4999):
        x = np.ones([5000], "float32")
        x[place] = bad
        assert not np.isfinite(COMPILED(tf.constant(x)))


def test_function_knows_whether_xla_compiles_it_also_in_its_loops():
    seen = []

    def look(x):
        seen.append(in_xla())
        tf.while_loop(lambda i: i < 2, lambda i: (seen.append(in_xla()), i + 1)[1:], (0,))
        tf.cond(x > 0.0, lambda: (seen.append(in_xla()), x)[1], lambda: x)
        return x

    for jit_compile in (False, True):
        seen.clear()
        tf.function(look, jit_compile=jit_compile, autograph=False).get_concrete_function(tf.constant(1.0))
        assert seen == [jit_compile] * 3
    assert not in_xla()
