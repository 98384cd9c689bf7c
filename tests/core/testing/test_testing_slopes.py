"""Per-example slopes find a path to the loss without a gradient, even if the other path has most of it."""

import numpy as np
import pytest
import tensorflow as tf

from core import layers, losses
from core.optimizers import sgd
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import assert_gradients

ROWS, TIME, WORDS = 8, 6, 11


class Residual(Task):
    """Blocks of `x + a(norm(x))`; the one at `cut` has no gradient along `x`."""

    def __init__(self, seed, size, norm, part, blocks=2, cut=0):
        super().__init__()
        rng, self.cut = Rng.from_seed(seed), cut
        self.words = layers.Embedding(WORDS, size, rng=rng.fold("e"))
        self.norms = [norm(size) for _ in range(blocks)]
        self.parts = [part(size, rng.fold(i)) for i in range(blocks)]
        self.last, self.out = layers.LayerNorm(size), layers.Linear(size, WORDS, rng=rng.fold("o"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        x = self.words(batch["tokens"][:, :-1])
        for i, (norm, part) in enumerate(zip(self.norms, self.parts, strict=True)):
            x = (tf.stop_gradient(x) if i == self.cut else x) + part(norm(x))
        per_token = losses.softmax_cross_entropy(self.out(self.last(x)), batch["tokens"][:, 1:])
        return Loss(per_token, weight=tf.ones_like(per_token))


def linear(size, rng):
    return layers.Linear(size, size, rng=rng)


def rectified(size, rng):
    first, second = layers.Linear(size, 4 * size, rng=rng.fold(0)), layers.Linear(4 * size, size, rng=rng.fold(1))
    return layers.Sequential([first, tf.nn.relu, second])


def attention(size, rng):
    return layers.MultiHeadAttention(size, 2, rng=rng, causal=True)


def halves(size):
    return layers.GroupNorm(size, 2)


def batch(seed):
    return {"tokens": np.random.RandomState(seed).randint(0, WORDS, (ROWS, TIME)).astype("int32")}


# The mean loss's slope alone passed the first three, and 0.05 of it passed the last.
@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "size", "norm", "part", "blocks", "cut"),
    [
        (4, 16, layers.RMSNorm, linear, 2, 0),
        (0, 16, halves, attention, 4, 0),
        (1, 16, layers.LayerNorm, rectified, 2, 0),
        (2, 16, layers.LayerNorm, attention, 3, 1),
        (3, 8, layers.RMSNorm, rectified, 3, 2),
    ],
)
def test_stopped_path_past_a_block_is_named(seed, size, norm, part, blocks, cut):
    with pytest.raises(AssertionError, match=r"isn't the slope of its loss.*tf\.stop_gradient"):
        assert_gradients(Residual(seed, size, norm, part, blocks, cut), batch(seed))


@pytest.mark.long
@pytest.mark.parametrize("part", [rectified, attention])
def test_blocks_whose_ways_are_all_open_pass(part):
    assert_gradients(Residual(0, 16, layers.LayerNorm, part, cut=None), batch(0))


NUDGED = 1.0 + 0.05 * np.random.RandomState(0).standard_normal(3).astype("float32")  # ones after the assertion's change


class Bent(Task):
    """After a nudge of its weights, every example is at a rectifier's kink."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3]))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.nn.relu(tf.reduce_sum((self.w - NUDGED) * batch["x"], -1)) + self.w[0])


def test_gradient_at_a_bend_is_that_of_one_side():
    assert_gradients(Bent(), {"x": np.random.RandomState(0).standard_normal([6, 3]).astype("float32")})
