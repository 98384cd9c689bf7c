"""Gradients of a step in bfloat16: right ones pass, and a stopped path is found."""

import dataclasses

import pytest
import tensorflow as tf

from core import layers
from core.random import Rng
from core.task import Loss
from core.testing import assert_gradients
from tests.toys import Line, points


class Narrow(Line):
    """Computes two layers in bfloat16; `cut` stops most of the gradient between them."""

    def __init__(self, *, rng, cut):
        super().__init__(rng=rng)
        self.hidden, self.cut = layers.Linear(3, 3, rng=rng.fold("hidden")), cut

    def phases(self):
        (phase,) = super().phases()
        return [dataclasses.replace(phase, trains=[self.hidden, self.net])]

    def loss(self, batch, rng):
        h = tf.tanh(self.hidden(tf.cast(batch["x"], tf.bfloat16)))
        h = tf.stop_gradient(0.9 * h) + 0.1 * h if self.cut else h
        return Loss(tf.square(tf.cast(self.net(h), tf.float32)[:, 0] - batch["y"]))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_right_gradients_in_bfloat16_pass_and_a_stopped_path_fails(seed):
    assert_gradients(Narrow(rng=Rng.from_seed(seed), cut=False), points(seed=seed))
    with pytest.raises(AssertionError, match=r"the gradient of `0/\w` in phase `net` isn't the slope of its loss"):
        assert_gradients(Narrow(rng=Rng.from_seed(seed), cut=True), points(seed=seed))
