"""What a traced function starts and moves: numbers that a reader can add up."""

import pytest
import tensorflow as tf

from core.estimate import MOVED, NEAR, STARTED, TURNS, work_of

MIB = 2**20
SQUARE = [512, 512]  # of float32: 1 MiB


@pytest.mark.parametrize(
    ("fn", "started", "moved"),
    [
        (lambda x: tf.exp(x) * x, 2, 2 + 3),
        (lambda x: tf.matmul(x, x), 1, 0),  # a product is counted by its operations
        (lambda x: tf.reshape(tf.exp(x), [-1]) + tf.zeros([512 * 512]), 2, 2 + 3),
        (lambda x: tf.nn.relu(tf.nn.bias_add(tf.matmul(x, x), x[0])), 2, 0),  # a slice, and a product
        (lambda x: x[:384], 1, 1.5),  # what it takes, not what it takes it from
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
    assert found[TURNS] == 3 * 4 * 4  # its values are the number of rounds and TensorFlow's, a limit, and `y`
    assert found[MOVED] == pytest.approx(3 * 2 * MIB, rel=1e-3)


def test_a_choice_hands_on_what_it_reads_and_makes():
    def choose(x):
        return tf.cond(x[0, 0] > 0.0, lambda: tf.exp(x), lambda: x)

    found = work_of(tf.function(choose, autograph=False).get_concrete_function(tf.TensorSpec(SQUARE)).graph)
    assert found[TURNS] == 2 + 1  # what decides and `x`, and one of both results


def test_an_update_reads_variables_and_writes_them():
    variable = tf.Variable(tf.zeros(SQUARE))
    add = tf.function(variable.assign_add, autograph=False).get_concrete_function(tf.TensorSpec(SQUARE))
    assert work_of(add.graph)[MOVED] == 3 * MIB


def test_what_stays_in_a_cache_is_counted_apart():
    traced = tf.function(lambda x: tf.exp(x[:32]), autograph=False).get_concrete_function(tf.TensorSpec(SQUARE))
    found = work_of(traced.graph)
    assert (found[MOVED], found[NEAR]) == (0, 2 * 2 * 32 * 512 * 4)
