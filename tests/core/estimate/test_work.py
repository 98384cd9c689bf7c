"""Values that loops and conditions of a traced function hand on: numbers that a reader can add up."""

import tensorflow as tf

from core.estimate import TURNS, work_of


def traced(fn):
    return tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec([8, 8]))


def test_a_loop_hands_on_its_values_in_each_round():
    def three_times(x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.exp(y)), (0, x))[1]

    # Its values are the number of rounds and TensorFlow's, a limit, and `y`.
    assert work_of(traced(three_times).graph)[TURNS] == 3 * 4 * 4


def test_a_choice_hands_on_what_it_reads_and_makes():
    def choose(x):
        return tf.cond(x[0, 0] > 0.0, lambda: tf.exp(x), lambda: x)

    assert work_of(traced(choose).graph)[TURNS] == 2 + 1  # what decides and `x`, and one of both results
