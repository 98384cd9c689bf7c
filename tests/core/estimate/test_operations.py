"""Operations, peak memory and the longest chain of a traced function, as numbers that a reader can add up."""

import pytest
import tensorflow as tf

from core.data import digits
from core.estimate import TURNS, chain_in, operations_of, work_of
from core.estimate.liveness import fullest, timeline
from core.estimate.memory import bytes_of
from core.optimizers import sgd
from core.task import Loss, Task, Update
from models.classifiers.mlp import MlpClassifier
from tests.trainers.trainer_lab import make


def counted(fn, *shapes):
    return operations_of(tf.function(fn, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes)).graph)


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lambda x, y: tf.matmul(x, y), ([5, 3], [3, 7]), 5 * 3 * 7),
        (lambda x, y: tf.matmul(x, y, transpose_a=True, transpose_b=True), ([3, 5], [7, 3]), 5 * 3 * 7),
        (lambda x, y: tf.matmul(x, y), ([2, 4, 5, 3], [2, 4, 3, 7]), 8 * 5 * 3 * 7),
        (lambda x, y: tf.matmul(x, y, adjoint_a=True), ([2, 3, 5], [2, 3, 7]), 2 * 5 * 3 * 7),
        (lambda x, y: tf.einsum("bqhd,bkhd->bhqk", x, y), ([2, 5, 4, 3], [2, 7, 4, 3]), 2 * 5 * 7 * 4 * 3),
        (lambda x, y: tf.einsum("...ij,jk->...ik", x, y), ([2, 6, 5, 3], [3, 7]), 12 * 5 * 3 * 7),
        (lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"), ([2, 8, 8, 3], [5, 5, 3, 6]), 2 * 4 * 4 * 6 * 5 * 5 * 3),
        (lambda x, k: tf.nn.depthwise_conv2d(x, k, [1] * 4, "SAME"), ([2, 8, 8, 3], [5, 5, 3, 2]), 128 * 6 * 25),
        (lambda x: x + tf.exp(x), ([4, 4],), 0),
    ],
)
def test_products(fn, shapes, expected):
    assert counted(fn, *shapes) == 2 * expected


@pytest.mark.parametrize("convolve", [tf.nn.conv2d, tf.nn.depthwise_conv2d])
def test_the_gradients_of_a_convolution_take_as_much_each(convolve):
    def gradients(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = convolve(x, kernel, [1, 2, 2, 1], "SAME")
        return tape.gradient(y, [x, kernel])

    shapes = ([2, 8, 8, 3], [5, 5, 3, 6])
    assert counted(gradients, *shapes) == 2 * counted(lambda x, k: convolve(x, k, [1, 2, 2, 1], "SAME"), *shapes)


def test_loops_count_their_rounds_and_conditions_how_often_they_are_due():
    def five_times(x):
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.matmul(y, y)), (0, x))[1]

    def third_step(x, step):
        due = tf.equal(tf.cast(step, tf.int64) % 3, 0)
        return tf.cond(due, lambda: tf.matmul(x, x), lambda: x)

    once = 2 * 4**3
    assert counted(five_times, [4, 4]) == 5 * once
    assert counted(tf.function(five_times, autograph=False), [4, 4]) == 5 * once
    assert counted(third_step, [4, 4], []) == pytest.approx(once / 3)
    assert counted(lambda x: tf.matmul(x, x) + tf.matmul(x, x), [4, 4]) == once  # computed once


def linear(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))


class Sometimes(Task):
    """Trains a second network in every fourth step."""

    def __init__(self, *, rng):
        self.a, self.b = linear(rng=rng.fold("a")), linear(rng=rng.fold("b"))

    def phases(self):
        (a,), (b,) = self.a.phases(), self.b.phases()
        return [
            Update("a", loss=a.loss, trains=a.trains, optimizer=a.optimizer),
            Update("b", loss=b.loss, trains=b.trains, optimizer=b.optimizer, every=4),
        ]

    def evaluate(self, batch) -> Loss:
        return self.a.evaluate(batch)


def test_phase_that_is_due_every_fourth_step_counts_a_quarter(tmp_path):
    chunk = make(tmp_path, task=Sometimes, source=digits("train")).chunk.get_concrete_function()
    forward = 2 * 32 * 64 * 10
    assert operations_of(chunk.graph) == pytest.approx(2 * forward * 1.25)  # and the gradient of the weights


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


MIB = 2**20


def held(fn, *shapes):
    """Returns the peak memory that `fn` itself allocates, in MiB."""
    graph = tf.function(fn, autograph=False).get_concrete_function(*[tf.TensorSpec(shape) for shape in shapes]).graph
    return fullest(timeline(graph, bytes_of)).passing.others / MIB


SQUARE = [512, 512]  # of float32: 1 MiB


def test_a_product_is_there_until_it_is_read():
    assert held(lambda x: tf.matmul(tf.matmul(tf.matmul(x, x), x), x), SQUARE) == 2.0


def test_arithmetic_reuses_buffers_without_further_readers():
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
        (lambda x: tf.tanh(x[0, 0]) + tf.matmul(x, x), {"MatMul": 1, "AddV2": 1}),  # the longer one
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
