"""Peak memory of a traced function: numbers that a reader can add up."""

import pytest
import tensorflow as tf

from core.estimate.liveness import fullest, timeline
from core.estimate.memory import bytes_of

MIB = 2**20


def held(fn, *shapes):
    """The most that `fn` holds of its own, in MiB."""
    graph = tf.function(fn, autograph=False).get_concrete_function(*[tf.TensorSpec(shape) for shape in shapes]).graph
    return fullest(timeline(graph, bytes_of)).passing.others / MIB


SQUARE = [512, 512]  # of float32: 1 MiB


def test_a_product_is_there_until_it_is_read():
    assert held(lambda x: tf.matmul(tf.matmul(tf.matmul(x, x), x), x), SQUARE) == 2.0


def test_arithmetic_writes_over_what_nobody_needs_any_more():
    assert held(lambda x: tf.exp(-tf.matmul(x, x)), SQUARE) == 1.0
    assert held(lambda x: tf.reshape(tf.matmul(x, x), [-1])[:1], SQUARE) == pytest.approx(1.0, abs=0.001)


def test_the_same_is_computed_once():
    assert held(lambda x: tf.matmul(x, x) @ x + tf.linalg.diag_part(tf.matmul(x, x)), SQUARE) == held(
        lambda x: (lambda y: y @ x + tf.linalg.diag_part(y))(tf.matmul(x, x)), SQUARE
    )


def test_a_backward_pass_keeps_what_the_forward_pass_made():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(10):
                y = tf.tanh(y)
        return tape.gradient(y, x)

    # Ten results, and the ones that the gradient of a sum begins with.
    assert held(gradient, SQUARE) == pytest.approx(11.0, abs=0.01)


@pytest.mark.parametrize("rounds", [3, 30])
def test_a_loops_list_grows_with_its_rounds(rounds):
    def stacked(x):
        return tf.map_fn(lambda i: tf.matmul(x, x), tf.range(rounds), fn_output_signature=tf.float32)[0, :1]

    # The elements, and then the tensor that is made of them.
    assert held(stacked, SQUARE) == pytest.approx(2.0 * rounds, abs=0.1)


@pytest.mark.parametrize(
    "choose",
    [
        lambda x, small, large: tf.cond(x[0, 0] > 0, large, small),
        lambda x, small, large: tf.switch_case(tf.cast(x[0, 0], tf.int32), [small, large, small]),
    ],
)
def test_the_larger_branch_counts(choose):
    def chosen(x):
        return choose(x, lambda: x[:1], lambda: tf.matmul(tf.matmul(x, x), x)[:1])

    assert held(chosen, SQUARE) == pytest.approx(2.0, abs=0.01)
