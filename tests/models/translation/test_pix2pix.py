"""pix2pix: a U-Net with its skips and its noise, losses by the paper's formulas, the same numbers on any replicas."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.errors import ConfigurationError, DataError
from core.optimizers import sgd
from core.random import Rng
from core.task import ONE_DEVICE
from core.testing import assert_step_function, assert_updates_only
from models import Pix2Pix
from models.translation import UNetGenerator
from tests.core.engine.engine_lab import assert_same, train

ROWS, SIZE = 4, 8
RANDOM = np.random.RandomState(0)
DATA = {name: np.tanh(RANDOM.randn(ROWS, SIZE, SIZE, 3)).astype("float32") for name in ("a", "b")}
BATCH = {name: tf.constant(x) for name, x in DATA.items()}
LARGE = {name: np.tanh(RANDOM.randn(ROWS, SIZE + 2, SIZE + 2, 3)).astype("float32") for name in ("a", "b")}
RNG = Rng.from_seed(1)._replace(num_rows=ROWS)


def made(**settings):
    """Returns a factory of tiny networks, as an experiment calls it."""
    defaults = {
        "image_shape": [SIZE, SIZE, 3],
        "generator_channels": [3, 4, 5],
        "discriminator_channels": [3, 4],
        "g_optimizer": sgd(1e-4),
        "d_optimizer": sgd(1e-3),
    }
    return functools.partial(Pix2Pix, **{**defaults, **settings})


@functools.cache
def task():
    return made()(rng=Rng.from_seed(0))


def mean(x):
    return np.mean(np.asarray(x, "float64"), axis=(1, 2, 3))


# --- the generator ---------------------------------------------------------------------------------------------------


def test_unet_has_the_size_of_the_papers():
    def layer(inputs, outputs, normed):  # a bias, or a scale and an offset
        return 16 * inputs * outputs + outputs * (2 if normed else 1)

    def expected(width):
        down = [width * times for times in (1, 2, 4, 8, 8, 8, 8, 8)]
        up = [*down[-2::-1], 3]
        inputs = [down[-1], *(2 * size for size in up[:-1])]  # the upsampled channels and the skip's
        halvings, doublings = zip([3, *down[:-1]], down, strict=True), zip(inputs, up, strict=True)
        total = sum(layer(i, o, 0 < n < 7) for n, (i, o) in enumerate(halvings))
        return down, total + sum(layer(i, o, n < 7) for n, (i, o) in enumerate(doublings))

    down, total = expected(2)
    g = UNetGenerator(3, 3, channels=down, dropout=0.5, rng=Rng.from_seed(0))
    assert sum(v.shape.num_elements() for v in g.trainable_variables) == total
    assert round(expected(64)[1] / 1e6, 1) == 54.4
    assert [layer.dropout.rate for layer in g.up] == [0.5] * 3 + [0.0] * 5


def test_unet_skips_hand_each_size_over():
    g = UNetGenerator(1, 1, channels=[2, 3, 4], dropout=0.0, rng=Rng.from_seed(0))
    image = tf.random.stateless_normal([2, 16, 16, 1], [0, 0])
    e1 = g.down[0].conv(image)
    e2 = g.down[1](tf.nn.leaky_relu(e1, 0.2))
    e3 = g.down[2].conv(tf.nn.leaky_relu(e2, 0.2))
    d1 = g.up[0].norm(g.up[0].conv(tf.nn.relu(e3)))
    d2 = g.up[1].norm(g.up[1].conv(tf.nn.relu(tf.concat([d1, e2], -1))))
    d3 = g.up[2].conv(tf.nn.relu(tf.concat([d2, e1], -1)))
    assert (e1.shape[1], e2.shape[1], e3.shape[1], d3.shape[1]) == (8, 4, 2, 16)
    np.testing.assert_allclose(g(image), tf.tanh(d3), atol=1e-6)


def test_dropout_is_the_noise():
    g, image = task().g, BATCH["a"]
    one, again, other = g(image, RNG), g(image, RNG), g(image, Rng.from_seed(2)._replace(num_rows=ROWS))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-4
    np.testing.assert_array_equal(task().translate(image), g(image))  # without noise, so that it can be repeated
    assert np.abs(g(image) - one).max() > 1e-4


# --- the losses ------------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, "float64")))


def judged(t, a, b):
    return sigmoid(t.d(tf.concat([a, b], -1)))


def test_generator_loss_is_that_of_the_paper():
    t, (a, b) = task(), BATCH.values()
    fake = t.g(a, RNG)
    loss = t.g_loss(BATCH, RNG)
    np.testing.assert_allclose(loss.per_example, -mean(np.log(judged(t, a, fake))) + 100.0 * mean(abs(fake - b)), 1e-5)
    np.testing.assert_array_equal(loss.outputs["fake_b"], fake)


def test_discriminator_loss_is_that_of_the_paper():
    t, (a, b) = task(), BATCH.values()
    fake = b[::-1]
    expected = -mean(np.log(judged(t, a, b))) - mean(np.log(1 - judged(t, a, fake)))
    loss = t.d_loss({**BATCH, "fake_b": fake}, RNG)
    np.testing.assert_allclose(loss.per_example, expected / 2, 1e-5)
    np.testing.assert_allclose(loss.metrics["real_accuracy"], mean(judged(t, a, b) > 0.5), atol=1e-6)
    np.testing.assert_allclose(loss.metrics["fake_accuracy"], mean(judged(t, a, fake) < 0.5), atol=1e-6)


def test_discriminator_depends_on_the_translated_image():
    t = task()
    batch = {**BATCH, "fake_b": BATCH["b"]}
    changed = {**batch, "a": BATCH["a"][::-1]}
    assert np.abs(t.d_loss(batch, RNG).per_example - t.d_loss(changed, RNG).per_example).max() > 1e-6


def test_evaluation_measures_errors_of_pairs():
    t, (a, b) = task(), BATCH.values()
    found = t.evaluate(BATCH)
    error, nothing = mean(abs(t.g(a) - b)), mean(abs(a - b))
    np.testing.assert_allclose(found.per_example, error, rtol=1e-5)
    np.testing.assert_allclose(found.metrics["identity_error"], nothing, rtol=1e-5)
    np.testing.assert_allclose(found.metrics["ratio_ab"].result(), error.mean() / nothing.mean(), rtol=1e-5)


# --- the step --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_step_functions_treat_rows_by_themselves():
    assert_step_function(task().g_loss, BATCH)
    assert_step_function(task().d_loss, {**BATCH, "fake_b": BATCH["b"]})


@pytest.mark.parametrize("phase", ["g", "d"])
def test_update_leaves_the_other_network_bit_for_bit(phase):
    t = made()(rng=Rng.from_seed(0))
    assert_updates_only(t, phase, getattr(t, phase), BATCH)


@pytest.mark.long
def test_replicas_microbatches_and_placements_change_nothing():
    """`test_invariance` trains it without placements."""
    task = made(generator_channels=[3, 4], crop_and_flip=True)
    alone = train(task, LARGE, 1, 1, steps=3)
    assert_same(train(task, LARGE, 2, 2, steps=3, placements={"d": ONE_DEVICE}), alone)
    assert_same(train(task, LARGE, 2, 1, steps=3, placements={"g": ONE_DEVICE}, one_device=["g"]), alone)


def test_crops_of_a_pair_are_alike():
    same = tf.constant(LARGE["a"])
    cut = made(crop_and_flip=True)(rng=Rng.from_seed(0)).cut({"a": same, "b": same}, RNG)
    np.testing.assert_array_equal(cut["cut_a"], cut["cut_b"])
    assert cut["cut_a"].shape == [ROWS, SIZE, SIZE, 3]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"image_shape": [12, 8, 3]}, ConfigurationError, "halves it 3 times, once for each of `generator_channels`"),
        ({"discriminator_channels": [2, 2, 2, 2]}, ConfigurationError, "`Pix2Pix.discriminator_channels` has 4"),
        ({"discriminator_channels": []}, ValueError, "`channels` of `PatchGan` is empty; give the channels of each"),
        ({"generator_channels": [3]}, ValueError, r"`channels` of `UNetGenerator` is \[3\]; give those of two layers"),
        ({"dropout": 1.0}, ValueError, "`dropout` is 1.0"),
        ({"l1_weight": -1.0}, ValueError, "`l1_weight` is -1.0"),
    ],
)
def test_settings_that_contradict_are_refused(settings, error, says):
    with pytest.raises(error, match=says):
        made(**settings)(rng=Rng.from_seed(0))


def test_source_without_pairs_is_refused():
    with pytest.raises(DataError, match="has no feature `b`"):
        task().check_source(ArraySource({"a": DATA["a"]}, name="odd"))
