"""Operations of a traced function: numbers that a reader can multiply out."""

import pytest
import tensorflow as tf

from core.data import digits
from core.estimate import operations_of
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
