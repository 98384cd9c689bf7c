"""Operations of a step are counted by kind, and can be repeated without the step."""

import numpy as np
import pytest
import tensorflow as tf

from core.estimate import kinds_in, operations_of

MIB = 2**20
SQUARE = [512, 512]  # of float32: 1 MiB


def traced(fn, *shapes):
    return tf.function(fn, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes))


def only(fn, *shapes):
    (kind,) = kinds_in(traced(fn, *shapes).graph)
    return kind


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
        (lambda x: tf.transpose(x, [2, 0, 1]), ([2, 5, 3],)),
        (lambda x: tf.transpose(x, tf.math.invert_permutation([2, 0, 1])), ([2, 5, 3],)),
        (lambda x: tf.reduce_sum(x, [0, -1]), ([2, 5, 3],)),
        (lambda x: tf.tile(x, [1, 4]), ([2, 5],)),
        (lambda x: tf.raw_ops.Pow(x=x, y=tf.constant(3.0) - 1.0), ([2, 5],)),
        (lambda x, y: tf.concat([x, y], 1), ([2, 5], [2, 3])),
        (lambda x: x[1:, ::2], ([3, 5],)),
    ],
)
def test_an_operation_done_again_makes_the_same(fn, shapes):
    kind = only(fn, *shapes)
    values = [tf.constant(np.random.RandomState(i).randn(*shape), tf.float32) for i, shape in enumerate(shapes)]
    operands = [*values, *[None] * (len(kind.operands) - len(values))]  # it knows the operation's control inputs
    again = tf.function(lambda: kind.of(operands), autograph=False)
    np.testing.assert_allclose(again(), fn(*values), rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_the_gradients_of_a_convolution_know_their_shapes():
    graph = traced(slopes_of_convolution, [2, 9, 8, 3], [5, 5, 3, 6], [2, 5, 4, 6]).graph
    again = tf.function(lambda: [kind.of([x.made() for x in kind.operands]) for kind in kinds_in(graph)])()
    assert sorted(made.shape.as_list() for made in again) == [[2, 9, 8, 3], [5, 5, 3, 6]]


def test_an_update_is_done_again_on_a_variable_of_its_own():
    variable = tf.Variable(tf.zeros([3]))
    kind = only(variable.assign_add, [3])
    operands = [x.made() for x in kind.operands]
    tf.function(lambda: kind.of(operands), autograph=False)()
    assert operands[0].numpy().tolist() == [2.0] * 3  # ones, to which ones were added
    assert variable.numpy().tolist() == [0.0] * 3


def test_constants_of_nan_are_alike():
    def fn(x):
        return tf.add_n([tf.where(tf.abs(x) > i, x, float("nan")) for i in (1.0, 2.0)])

    found = kinds_in(traced(fn, [3]).graph)
    assert [times for kind, times in found.items() if kind.type == "SelectV2"] == [2]


def test_equal_kinds_are_one_and_all_operations_are_counted():
    def three(x, y):
        return tf.matmul(tf.matmul(tf.matmul(x, y), x), y, transpose_b=True)

    graph = traced(three, [4, 4], [4, 4]).graph
    found = kinds_in(graph)
    assert sorted(found.values()) == [1, 2]
    assert {kind.operations for kind in found} == {2 * 4**3}
    assert sum(times * kind.operations for kind, times in found.items()) == operations_of(graph)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, y: tf.ensure_shape(tf.matmul(x, y), [3, 5]), ([None, 4], [4, 5])),
        (lambda x, y: tf.transpose(x, tf.cast(y, tf.int32)), ([3, 4], [2])),
        (lambda x, y: tf.raw_ops.Pow(x=x, y=y), ([3, 4], [])),
        (lambda x: tf.random.normal([3, 4]) + x, ([3, 4],)),
    ],
)
def test_operations_with_unknown_shapes_or_values_are_not_done_again(fn, shapes):
    kinds = kinds_in(traced(fn, *shapes).graph)
    assert None in {kind.operands for kind in kinds}


@pytest.mark.parametrize(
    ("fn", "started", "moved"),
    [
        (lambda x: tf.exp(x) * x, 2, 2 + 3),
        (lambda x: tf.matmul(x, x), 1, 3),
        (lambda x: tf.reshape(tf.exp(x), [-1]) + tf.zeros([512 * 512]), 2, 2 + 3),
        (lambda x: tf.nn.relu(tf.nn.bias_add(tf.matmul(x, x), x[0])), 2, 3),  # a slice, and a product
        (lambda x: x[:384], 1, 1.5),  # what it takes, not what it takes it from
    ],
)
def test_bytes_that_operations_read_and_make(fn, started, moved):
    found = kinds_in(traced(fn, SQUARE).graph)
    assert sum(found.values()) == started
    assert sum(times * kind.bytes for kind, times in found.items()) == pytest.approx(moved * MIB, rel=2e-3)


def test_a_loop_counts_as_often_as_it_goes_round():
    def three_times(x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.exp(y)), (0, x))[1]

    found = kinds_in(traced(three_times, SQUARE).graph)
    assert sum(found.values()) == 3 * 3  # it counts its rounds, and so does TensorFlow
    assert sum(times for kind, times in found.items() if kind.type == "Exp") == 3


def test_an_update_reads_variables_and_writes_them():
    variable = tf.Variable(tf.zeros(SQUARE))
    assert only(variable.assign_add, SQUARE).bytes == 3 * MIB
