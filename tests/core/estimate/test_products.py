"""Products of a step, done again without it: they make what they made there."""

import numpy as np
import pytest
import tensorflow as tf

from core.estimate import operations_of, products_in


def traced(fn, *shapes):
    return tf.function(fn, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes))


def slopes_of_convolution(x, kernel, above):
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        made = tf.nn.conv2d(x, kernel, 2, "SAME")
    return tape.gradient(made, [x, kernel], above)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, y: tf.matmul(x, y, transpose_a=True, transpose_b=True), ([3, 5], [7, 3])),
        (lambda x, y: tf.matmul(x, y), ([2, 4, 5, 3], [2, 4, 3, 7])),
        (lambda x, y: tf.einsum("bqhd,bkhd->bhqk", x, y), ([2, 5, 4, 3], [2, 7, 4, 3])),
        (lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"), ([2, 9, 8, 3], [5, 5, 3, 6])),
        (lambda x, k: tf.nn.depthwise_conv2d(x, k, [1] * 4, "SAME"), ([2, 8, 8, 3], [5, 5, 3, 2])),
    ],
)
def test_a_product_done_again_makes_the_same(fn, shapes):
    (product,) = products_in(traced(fn, *shapes).graph)
    values = [tf.constant(np.random.RandomState(i).randn(*shape), tf.float32) for i, shape in enumerate(shapes)]
    again = tf.function(lambda *given: product.of(given), autograph=False)
    np.testing.assert_allclose(again(*values), fn(*values), rtol=1e-5, atol=1e-5)


def test_the_gradients_of_a_convolution_are_told_the_shapes_that_they_make():
    graph = traced(slopes_of_convolution, [2, 9, 8, 3], [5, 5, 3, 6], [2, 5, 4, 6]).graph
    again = tf.function(lambda: [each.of([x.made() for x in each.operands]) for each in products_in(graph)])()
    assert sorted(made.shape.as_list() for made in again) == [[2, 9, 8, 3], [5, 5, 3, 6]]


def test_those_alike_are_one_and_all_operations_are_counted():
    def three(x, y):
        return tf.matmul(tf.matmul(tf.matmul(x, y), x), y, transpose_b=True)

    graph = traced(three, [4, 4], [4, 4]).graph
    found = products_in(graph)
    assert sorted(found.values()) == [2 * 4**3, 2 * 2 * 4**3]
    assert {product.operations for product in found} == {2 * 4**3}
    assert sum(found.values()) == operations_of(graph)


def test_what_is_not_known_beforehand_is_told_apart():
    step = traced(lambda x, y: tf.ensure_shape(tf.matmul(x, y), [3, 5]), [None, 4], [4, 5])
    assert not products_in(step.graph)  # nor does it count as operations
