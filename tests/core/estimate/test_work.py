"""What a traced function starts and moves: numbers that a reader can add up."""

import pytest
import tensorflow as tf

from core.estimate import MOVED, STARTED, work_of

MIB = 2**20
SQUARE = [512, 512]  # of float32: 1 MiB


@pytest.mark.parametrize(
    ("fn", "started", "moved"),
    [
        (lambda x: tf.exp(x) * x, 2, 2 + 3),
        (lambda x: tf.matmul(x, x), 1, 0),  # a product is counted by its operations
        (lambda x: tf.reshape(tf.exp(x), [-1]) + tf.zeros([512 * 512]), 2, 2 + 3),
        (lambda x: x[:256], 1, 1),  # what it takes, not what it takes it from
    ],
)
def test_of_operations(fn, started, moved):
    found = work_of(tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec(SQUARE)).graph)
    assert found[STARTED] == started
    assert found[MOVED] == pytest.approx(moved * MIB, rel=1e-3)


def test_a_loop_counts_as_often_as_it_goes_round():
    def three_times(x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.exp(y)), (0, x))[1]

    found = work_of(tf.function(three_times, autograph=False).get_concrete_function(tf.TensorSpec(SQUARE)).graph)
    assert found[STARTED] == 3 * 3  # it counts its rounds, and so does TensorFlow
    assert found[MOVED] == pytest.approx(3 * 2 * MIB, rel=1e-3)
