"""A task is held to its precision: what leaves it is named, and its gradients are checked in float32."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.precision import Precision
from core.random import Rng
from core.task import Loss
from core.testing import assert_task
from core.testing.precision import check_narrow_sums
from core.testing.traced import steps
from tests.toys import Line, points


class Follows(Line):
    """Computes two layers in the dtype of its inputs."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.hidden = layers.Linear(3, 3, rng=rng.fold("hidden"))

    def phases(self):
        (phase,) = super().phases()
        return [dataclasses.replace(phase, trains=[self.hidden, self.net])]

    def between(self, h):
        return tf.tanh(h)

    def loss(self, batch, rng):
        made = self.net(self.between(self.hidden(batch["x"])))
        return Loss(tf.square(tf.cast(made[:, 0], tf.float32) - tf.cast(batch["y"], tf.float32)))


class Leaves(Follows):
    def between(self, h):
        return tf.tanh(tf.cast(h, tf.float32))  # left here


class Counts(Follows):
    def between(self, h):
        return tf.one_hot(tf.argmax(h, 1), 3)  # made here

    def phases(self):
        return [dataclasses.replace(phase, trains=self.net) for phase in super().phases()]

    frozen = ("hidden",)


class Multiplies(Follows):
    def between(self, h):
        return tf.cast(tf.matmul(h, self.hidden.w), h.dtype)  # in float32, by TensorFlow


class Coarse(Follows):
    def between(self, h):
        return tf.tanh((h + 300.0) - 300.0)  # which bfloat16 rounds to even numbers


class ByHand(Follows):
    def loss(self, batch, rng):
        made = self.net(self.between(self.hidden(tf.cast(batch["x"], tf.bfloat16))))
        return Loss(tf.square(tf.cast(made[:, 0], tf.float32) - batch["y"]))


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bfloat16", "float16", {"net": "bfloat16"}])
def test_task_that_follows_its_inputs_passes(precision):
    assert_task(Follows(rng=Rng.from_seed(0)), points(), precision=precision)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Leaves, r"MatMul in float32, though its precision is bfloat16.*leaves at .*tf.cast\(h, tf.float32\)"),
        (Counts, "MatMul in float32, though its precision is bfloat16.*leaves at .*one_hot"),
        (Multiplies, r"MatMul in float32, though its precision is bfloat16.*leaves at .*tf.matmul\(h, self.hidden.w\)"),
        (Coarse, r"the gradient of `\d/\w` in phase `net`, computed in bfloat16, is .* away from float32's"),
    ],
)
def test_task_that_leaves_its_precision_fails_and_its_line_is_named(task, message):
    with pytest.raises(AssertionError, match=message):
        assert_task(task(rng=Rng.from_seed(0)), points(), precision="bfloat16")


class Long(Follows):
    """Adds up a long row in the dtype of its inputs."""

    def __init__(self, total):
        super().__init__(rng=Rng.from_seed(0))
        self.total = total

    def between(self, h):
        row = tf.repeat(tf.tanh(h), 1000, axis=1) / 1000.0
        return tf.tanh(h) + self.total(row)[:, None]


SUMS = {
    "reduce_sum": lambda row: tf.reduce_sum(row, 1),
    "einsum": lambda row: tf.einsum("rt,rt->r", row, row),
    "cumsum": lambda row: tf.cumsum(row, 1)[:, -1],
    "softmax": lambda row: tf.nn.softmax(row)[:, 0],
    "widened": lambda row: tf.cast(tf.reduce_sum(tf.cast(row, tf.float32), 1), row.dtype),
    "short": lambda row: tf.reduce_sum(row[:, :200], 1) + tf.nn.softmax(row[:, :200])[:, 0],
}


@pytest.mark.parametrize(
    ("name", "precision", "says"),
    [
        ("einsum", "bfloat16", r"adds 3,000 terms in bfloat16 \(Einsum\) at .*`.*tf.einsum.*matmul"),
        ("einsum", "float16", r"adds 3,000 terms in float16 \(Einsum\)"),
        ("cumsum", "bfloat16", r"adds 3,000 terms in bfloat16 \(Cumsum\) at .*`.*tf.cumsum"),
        ("reduce_sum", "float16", r"adds 3,000 terms in float16 \(Sum\) at .*`.*tf.reduce_sum"),
    ],
)
def test_long_sum_that_is_added_narrowly_fails_with_its_line(name, precision, says):
    with pytest.raises(AssertionError, match=says):
        check_narrow_sums(*steps(Long(SUMS[name]), points(), precision=Precision(precision)))


@pytest.mark.parametrize(
    ("name", "precision", "says"),
    [
        ("reduce_sum", "bfloat16", r"adds 3,000 terms in bfloat16 \(Sum\) at .*`.*tf.reduce_sum"),
        ("softmax", "float16", r"adds 3,000 terms in float16 \(Softmax\) at .*`.*tf.nn.softmax"),
    ],
)
def test_long_sum_that_is_only_rounded_warns_with_its_line(name, precision, says):
    with pytest.warns(UserWarning, match=says):
        check_narrow_sums(*steps(Long(SUMS[name]), points(), precision=Precision(precision)))


@pytest.mark.filterwarnings("error:.* adds .* terms")
@pytest.mark.parametrize("name", ["widened", "short"])
def test_short_or_widened_sums_pass(name):
    check_narrow_sums(*steps(Long(SUMS[name]), points(), precision=Precision("bfloat16")))


def test_layer_that_widens_its_input_on_purpose_passes():
    class Normed(Follows):
        def __init__(self, *, rng):
            super().__init__(rng=rng)
            self.norm = layers.LayerNorm(3)

        def between(self, h):
            return tf.tanh(self.norm(h)) if h.shape.rank == 2 else h

        def phases(self):
            (phase,) = super().phases()
            return [dataclasses.replace(phase, trains=[self.hidden, self.norm, self.net])]

    assert_task(Normed(rng=Rng.from_seed(0)), points(), precision="bfloat16", except_for=["0/b"])


@pytest.mark.parametrize("seed", range(2))
def test_right_gradients_of_casts_by_hand_pass(seed):
    assert_task(ByHand(rng=Rng.from_seed(seed)), points(seed=seed), except_for=["bfloat16"])


def test_float64_stays_an_error():
    class Wide(Follows):
        def between(self, h):
            return tf.cast(tf.cast(h, tf.float64) * np.float64(0.5), h.dtype)

    with pytest.raises(AssertionError, match=r"computes in float64 at test_testing_precision\.py"):
        assert_task(Wide(rng=Rng.from_seed(0)), points(), precision="bfloat16")
