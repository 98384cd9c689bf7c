"""The longest chain of a traced function: chains that a reader can follow."""

import pytest
import tensorflow as tf

from core.estimate import chain_in


def chain_of(fn):
    graph = tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec([64, 64])).graph
    found = dict[str, float]()
    for kind, times in chain_in(graph).items():
        found[kind.type] = found.get(kind.type, 0) + times
    return found


def rounds(overlapping):
    def fn(x):
        loop = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, tf.exp(y)), (0, x), parallel_iterations=overlapping
        )
        return loop[1]

    return fn


def sometimes(x):
    return tf.cond(tf.equal(tf.cast(x[0, 0], tf.int32) % 4, 0), lambda: tf.matmul(x, x), lambda: x)


@pytest.mark.parametrize(
    ("fn", "chain"),
    [
        (lambda x: tf.exp(tf.sin(x)), {"Sin": 1, "Exp": 1}),
        (lambda x: tf.exp(x) + tf.sin(tf.cos(x)), {"Cos": 1, "Sin": 1, "AddV2": 1}),
        (lambda x: tf.tanh(x[0, 0]) + tf.matmul(x, x), {"MatMul": 1, "AddV2": 1}),  # the longer, not the one of more
        (lambda x: [tf.exp(tf.exp(x)), tf.sin(x)], {"Exp": 2}),
        (rounds(1), {"Exp": 3}),
        (rounds(10), {"Exp": 1}),
        (sometimes, {"StridedSlice": 1, "Cast": 1, "FloorMod": 1, "Equal": 1, "MatMul": 0.25}),
    ],
)
def test_the_longest_chain(fn, chain):
    assert chain_of(fn) == chain


def test_reads_of_a_variable_come_after_its_update():
    variable = tf.Variable(tf.zeros([64, 64]))

    def update_and_read(x):
        variable.assign_add(tf.exp(x))
        return tf.sin(variable)

    assert chain_of(update_and_read) == {"Exp": 1, "AssignAddVariableOp": 1, "Sin": 1}


def test_rounds_that_write_variables_come_one_after_the_other():
    variable = tf.Variable(tf.zeros([64, 64]))

    def add(i, y):
        variable.assign_add(y)
        return i + 1, y

    def fn(x):
        return tf.while_loop(lambda i, _: i < 3, add, (0, x), parallel_iterations=10)[1]

    assert chain_of(fn)["AssignAddVariableOp"] == 3
