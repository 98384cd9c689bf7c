"""A task is held to its precision: what leaves it is named, and its gradients are checked in float32."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.random import Rng
from core.task import Loss
from core.testing import assert_task
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
